"""Whether this process is alive, and whether it should get calls: two questions with different answers.

Promises: alive means the event loop runs and the control loop's short jobs had a turn lately, whatever PostgreSQL
does (a restart would not bring the database back); ready means started, on the right schema, and able to answer, if
only from memory: a database that is away makes a process degraded, not unready.
Answers name what is wrong and nothing else. Called by the side port.
"""

from collections.abc import Callable, Mapping

# Jobs whose turns are short, whether this process leads or follows. Fits and calibrations may take their time.
WATCHED_JOBS = ("tick", "scrape")
STALLED_AFTER_S = 300.0


class Health:
    """Asks the parts of one process how they are."""

    def __init__(
        self,
        *,
        turn_ages_s: Callable[[], Mapping[str, float]],
        loop_runs: bool,
        api_problem: Callable[[], str],
        api_degraded: Callable[[], str],
        age_s: Callable[[], float],
    ) -> None:
        """``age_s``: how long the process has run; before a job's first turn ended, that is its age."""
        self._turn_ages_s, self._loop_runs = turn_ages_s, loop_runs
        self._api_problem, self._api_degraded, self._age_s = api_problem, api_degraded, age_s

    def liveness(self) -> list[str]:
        """What is wrong so that only a restart helps; empty: nothing."""
        if not self._loop_runs:
            return []
        ages = self._turn_ages_s()
        return [
            f"the job {job} had no turn for {age_s:.0f} s"
            for job in WATCHED_JOBS
            if (age_s := ages.get(job, self._age_s())) > STALLED_AFTER_S
        ]

    def readiness(self) -> list[str]:
        """Why this process should get no calls; empty: it should."""
        problem = self._api_problem()
        return [problem] if problem else []

    def degraded(self) -> list[str]:
        """What does not work although it should get calls."""
        degraded = self._api_degraded()
        return [degraded] if degraded else []
