"""Reading once for everybody: what is kept, what is raised, what is read again."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from controller.client import Client
from controller.console import live
from controller.console.live import Feed, Source, gathered

NOW = datetime(2026, 11, 11, tzinfo=UTC)


class SteppedClock:
    """Stands still until it is moved; sleeping yields and moves on by nothing."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.elapsed_s)

    def monotonic(self) -> float:
        return self.elapsed_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.elapsed_s += seconds
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Answer:
    text: str
    stale_since: datetime | None = None


class Api:
    """Answers of a source, in turn; exceptions are raised. The last one stays."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers, self.calls, self.previous = list(answers), 0, list[Answer | None]()

    async def load(self, client: Client, argument: str, previous: Answer | None, now: datetime) -> Answer:
        self.calls += 1
        self.previous.append(previous)
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def failing(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "said so")


@pytest.fixture
async def feed() -> AsyncIterator[tuple[Feed, SteppedClock]]:
    clock = SteppedClock()
    made = Feed(Client("127.0.0.1:1"), clock)
    yield made, clock
    await made.close()


async def test_many_viewers_at_once_cost_one_call(feed: tuple[Feed, SteppedClock]) -> None:
    api = Api(Answer("one"))
    source = Source("a", 5.0, api.load)
    readings = await asyncio.gather(*(feed[0].read(source) for _ in range(20)))
    assert 1 == api.calls
    assert {("one", NOW, 1)} == {(r.value.text if r.value else "", r.at, r.rev) for r in readings}


async def test_what_is_older_than_its_period_is_read_anew_with_what_was_known(
    feed: tuple[Feed, SteppedClock],
) -> None:
    api = Api(Answer("one"), Answer("one"), Answer("two"))
    source, (reader, clock) = Source("a", 5.0, api.load), feed
    revisions = []
    for _ in range(3):
        revisions.append((await reader.read(source)).rev)
        clock.elapsed_s += 6
    # The same answer is no new revision: pages need not look again.
    assert [1, 1, 2] == revisions
    assert [None, Answer("one"), Answer("one")] == api.previous


@pytest.mark.parametrize("code", sorted(live.LOST, key=lambda one: one.name))
async def test_an_api_that_is_away_leaves_the_values_of_before_with_their_time(
    feed: tuple[Feed, SteppedClock], code: grpc.StatusCode
) -> None:
    api = Api(Answer("one"), failing(code), failing(code), Answer("one"))
    source, (reader, clock) = Source("a", 5.0, api.load), feed
    seen = []
    for _ in range(4):
        seen.append(await reader.read(source))
        clock.elapsed_s += 10
    lost_at = NOW + timedelta(seconds=10)
    assert [None, lost_at, lost_at, None] == [one.lost_at for one in seen]
    assert [NOW, NOW, NOW, NOW + timedelta(seconds=30)] == [one.at for one in seen]
    assert ["one"] * 4 == [one.value.text if one.value else "" for one in seen]
    assert [1, 2, 2, 3] == [one.rev for one in seen]


async def test_a_refusal_is_raised_and_never_shown_as_an_absence(feed: tuple[Feed, SteppedClock]) -> None:
    api = Api(failing(grpc.StatusCode.PERMISSION_DENIED), Answer("one"))
    source, (reader, clock) = Source("a", 5.0, api.load), feed
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError):
            await reader.read(source)
    assert 1 == api.calls
    clock.elapsed_s += 6
    assert Answer("one") == (await reader.read(source)).value


async def test_a_change_makes_the_next_look_read_anew(feed: tuple[Feed, SteppedClock]) -> None:
    api = Api(Answer("one"), Answer("two"))
    source = Source("a", 5.0, api.load)
    await feed[0].read(source, "x")
    feed[0].forget("other")
    assert Answer("one") == (await feed[0].read(source, "x")).value
    feed[0].forget("a")
    assert Answer("two") == (await feed[0].read(source, "x")).value


async def test_what_the_api_says_from_memory_is_known_as_such(feed: tuple[Feed, SteppedClock]) -> None:
    reading = await feed[0].read(Source("a", 5.0, Api(Answer("one", NOW)).load))
    assert (NOW, None) == (reading.stale_since, reading.lost_at)


async def test_a_watched_topic_is_read_until_nobody_watches_and_at_once_while_it_is_incomplete(
    feed: tuple[Feed, SteppedClock],
) -> None:
    api = Api(Answer("part"), Answer("part"), Answer("whole"))
    source, (reader, clock) = Source("a", 5.0, api.load, lambda one: one.text == "part"), feed
    async with reader.watched([(source, "")]) as (topics, woken), asyncio.timeout(30):
        while api.calls < 6:
            await woken.wait()
            woken.clear()
        assert Answer("whole") == topics["a"].reading.value
    assert [live.HURRY_S, live.HURRY_S, 5.0, 5.0] == clock.slept[:4]
    calls = api.calls
    for _ in range(20):
        await asyncio.sleep(0)
    assert calls == api.calls


async def test_a_bug_in_one_source_is_a_loss_and_not_the_end_of_its_refresh(
    feed: tuple[Feed, SteppedClock], caplog: pytest.LogCaptureFixture
) -> None:
    api = Api(ValueError("a bug"), Answer("one"))
    async with feed[0].watched([(Source("a", 5.0, api.load), "")]) as (topics, woken), asyncio.timeout(30):
        while topics["a"].reading.value is None:
            await woken.wait()
            woken.clear()
    assert "could not read a" in caplog.text


async def test_topics_nobody_watches_are_forgotten_beyond_the_limit(feed: tuple[Feed, SteppedClock]) -> None:
    api = Api(Answer("one"))
    source = Source("a", 5.0, api.load)
    async with feed[0].watched([(source, "kept")]):
        for number in range(live.TOPICS_MAX + 50):
            await feed[0].read(source, str(number))
        assert live.TOPICS_MAX == len(feed[0]._topics)
        assert "a:kept" in feed[0]._topics


async def test_calls_are_made_a_few_at_a_time_and_the_first_failure_ends_them() -> None:
    running, most = 0, 0

    async def call(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        if number == 99:
            raise ValueError("no")
        return number

    assert list(range(30)) == await gathered(*(call(number) for number in range(30)), limit=4)
    assert 4 == most
    with pytest.raises(ValueError, match="no"):
        await gathered(call(99), *(call(number) for number in range(20)), limit=1)
