"""Words of the console: every language has every string, every string that is asked for is there."""

import re
import string
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from forecrest.v1 import control_pb2, event_pb2, forecast_pb2, workload_pb2
from markupsafe import Markup

import controller.console
from controller.console.render import LANGUAGES, Words, path_of_band, path_of_line, pick_language, strings

HERE = Path(controller.console.__file__).parent
# Values of enums whose words are looked up by name.
ENUMS = {
    "mode": (workload_pb2.Mode, "MODE_"),
    "alarm": (control_pb2.AlarmKind, "ALARM_KIND_"),
    "condition.ok": (control_pb2.ConditionType, "CONDITION_TYPE_"),
    "condition.not": (control_pb2.ConditionType, "CONDITION_TYPE_"),
    "contract": (event_pb2.ContractState, "CONTRACT_STATE_"),
    "reason": (control_pb2.DecisionReason, "DECISION_REASON_"),
    "source": (control_pb2.Source, "SOURCE_"),
    "kind": (control_pb2.RecommendationKind, "RECOMMENDATION_KIND_"),
    "fate": (control_pb2.RecommendationFate, "RECOMMENDATION_FATE_"),
    "trust": (forecast_pb2.ForecastTrust, "FORECAST_TRUST_"),
    "forecast": (forecast_pb2.ForecastState, "FORECAST_STATE_"),
    "override": (control_pb2.OverrideKind, "OVERRIDE_KIND_"),
}


def used_keys() -> set[str]:
    """Keys written out in templates, pages and scripts: ``t("a.b")``, NAV, and what is made of a prefix is left out."""
    found: set[str] = set()
    for path in [*HERE.glob("templates/*.html"), *HERE.glob("static/js/*.js")]:
        found |= set(
            re.findall(r"""\bt\(\s*["']([a-z_]+\.[a-z0-9_.]*[a-z0-9_])["']\s*[,)]""", path.read_text())
        )
    for path in HERE.glob("**/*.py"):
        text = path.read_text()
        found |= set(re.findall(r'NAV = \("([a-z.]+)"', text)) | set(
            re.findall(r'LoginError\("([a-z_.]+)"', text)
        )
        found |= set(re.findall(r'\bwords\("([a-z_.]+)"', text))
    return found


def test_every_language_has_the_same_strings_with_the_same_places_for_values() -> None:
    def places(text: str) -> set[str | None]:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}

    english = strings("en")
    for language in LANGUAGES:
        other = strings(language)
        assert sorted(english) == sorted(other)
        assert {key: places(text) for key, text in english.items()} == {
            k: places(v) for k, v in other.items()
        }


def test_every_string_that_is_asked_for_exists() -> None:
    keys = used_keys()
    assert len(keys) > 100
    assert [] == sorted(keys - set(strings("en")))


@pytest.mark.parametrize("prefix", sorted(ENUMS))
@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_every_value_of_an_enum_has_a_word(prefix: str, language: str) -> None:
    enum, start = ENUMS[prefix]
    names = [name.removeprefix(start) for name in enum.keys() if not name.endswith("UNSPECIFIED")]  # noqa: SIM118
    assert [] == [name for name in names if f"{prefix}.{name}" not in strings(language)]


def test_a_value_that_newer_servers_know_is_shown_by_its_name() -> None:
    assert "Brand new" == Words("en").enum("reason", "BRAND_NEW")


def test_what_is_unknown_is_a_dash_with_a_name_and_never_zero() -> None:
    t = Words("en")
    shown = [t.number(None), t.qps(float("nan")), t.percent(None), t.span(None), t.when(None)]
    for one in shown:
        assert isinstance(one, Markup)
        assert "unknown" in one
        assert "0" not in one


def test_numbers_are_as_long_as_they_matter() -> None:
    t = Words("en")
    assert ("35\u202f000", "12.3", "0.00123") == (t.qps(35_000), t.qps(12.34), t.qps(0.00123456))
    assert ("67 %", "+5 120", "\N{MINUS SIGN}3") == (
        t.percent(2 / 3),
        str(t.signed(5120)).replace("\u202f", " "),
        t.signed(-3),
    )


def test_a_duration_has_its_two_largest_units() -> None:
    t = Words("en")
    said = [
        str(t.span(one)).replace("\xa0", " ")
        for one in (timedelta(days=1, hours=2, minutes=3), 61.0, 0.2, -90.0)
    ]
    assert ["1 d 2 h", "1 min 1 s", "0 s", "-1 min 30 s"] == said


def test_a_time_keeps_utc_in_its_title() -> None:
    shown = Words("en").when(datetime(2026, 11, 11, 0, 0, 5, tzinfo=UTC), "time")
    assert 'datetime="2026-11-11T00:00:05Z"' in shown
    assert 'title="2026-11-11 00:00:05 UTC"' in shown


@pytest.mark.parametrize(
    ("cookie", "accepted", "language"),
    [
        ("zh", "en", "zh"),
        ("", "de-DE,zh-CN;q=0.8,en;q=0.5", "zh"),
        ("xx", "fr", "en"),
        ("", "", "en"),
    ],
)
def test_the_language_is_the_chosen_one_then_the_accepted_one(
    cookie: str, accepted: str, language: str
) -> None:
    assert language == pick_language(cookie, accepted)


def test_lines_and_bands_are_broken_where_nothing_is_known() -> None:
    assert "M0.0 11.0L10.0 1.0M30.0 11.0" == path_of_line((0.0, 5.0, None, 0.0), 30, 10, 5.0)
    assert 2 == path_of_band((0.0, None, 1.0), (1.0, 2.0, 2.0), 20, 10, 2.0).count("Z")
    assert "" == path_of_band((), (), 20, 10, 2.0)
