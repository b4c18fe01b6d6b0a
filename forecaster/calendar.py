"""Public holidays as ordinary events.

Promises: one event per holiday, from local midnight to local midnight, category `holiday`; deterministic
for a version of the `holidays` package.
Refuses: unknown countries and zones, naming the argument, and spans beyond thirty years.
Called by: operators' calendars and benchmarks. Time zones matter: a holiday begins at local midnight.
"""

import re
from datetime import MAXYEAR, MINYEAR, UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import holidays

from forecaster.daylight import zone_named
from forecaster.types import HOLIDAY, Event, ForecastInputError

YEAR_COUNT_MAX = 30
ISO = re.compile("[A-Z]{2}")


def holiday_events(
    country: str,
    first: datetime,
    last: datetime,
    *,
    zone: str,
    subdivision: str | None = None,
    category: str = HOLIDAY,
) -> tuple[Event, ...]:
    """Return the public holidays that touch `[first, last]`, oldest first.

    Args:
        country: ISO 3166-1 code, such as `DE`.
        first: Begin of the span, aware.
        last: End of the span, aware.
        zone: IANA zone in which the holiday is kept.
        subdivision: State or province whose holidays count too.
        category: Category of the events.

    Raises:
        ForecastInputError: An argument cannot be used.
    """
    local = zone_named(zone, "zone")
    years = _years(first, last, local)
    # The package takes any name of its own for a country.
    if not ISO.fullmatch(str(country)):
        raise ForecastInputError("country", f"is {country!r}; give an ISO 3166-1 code, such as DE.")
    try:
        days = holidays.country_holidays(country, subdiv=subdivision, years=years)
    except NotImplementedError as error:
        raise ForecastInputError(
            "country", f"{country!r} (subdivision {subdivision!r}) is unknown."
        ) from error
    found = []
    for day in sorted(days):
        start = datetime.combine(day, time(), local)
        end = datetime.combine(day + timedelta(days=1), time(), local)
        if end > first and start <= last:
            found.append(Event(start.astimezone(UTC), end.astimezone(UTC), category=category))
    return tuple(found)


def _years(first: datetime, last: datetime, local: ZoneInfo) -> range:
    for name, moment in (("first", first), ("last", last)):
        if moment.tzinfo is None:
            raise ForecastInputError(name, "is naive; give it a time zone, such as UTC.")
    if last < first:
        raise ForecastInputError("last", f"{last} is before first {first}.")
    for name, moment in (("first", first), ("last", last)):
        if not MINYEAR < moment.year < MAXYEAR:
            raise ForecastInputError(name, f"is in the year {moment.year}; give one between 2 and 9998.")
    years = range(first.astimezone(local).year, last.astimezone(local).year + 1)
    if len(years) > YEAR_COUNT_MAX:
        raise ForecastInputError("last", f"spans {len(years)} years; ask for at most {YEAR_COUNT_MAX}.")
    return years
