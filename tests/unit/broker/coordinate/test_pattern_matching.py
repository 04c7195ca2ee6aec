"""Regular expressions of clients are tried in a worker, the cheapest first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from tidelog.broker.coordinate import group_work
from tidelog.broker.coordinate.group_work import PatternMatching
from tidelog.coordinator import patterns as expressions
from tidelog.coordinator.patterns import InvalidPattern
from tidelog.coordinator.runtime import CoordinatorRefused
from tidelog.identifiers import TopicId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.workers.offload import InlineOffload


class Topic(NamedTuple):
    topic_id: TopicId
    name: str
    partition_count: int = 1


class Topics:
    """The topics of a cluster."""

    def __init__(self, *names: str) -> None:
        found = [Topic(UUID(int=number), name) for number, name in enumerate(names)]
        self.topics = {topic.topic_id: topic for topic in found}

    def topic_named(self, name: str) -> Topic | None:
        return next((each for each in self.topics.values() if each.name == name), None)


class Worker(InlineOffload):
    """Runs one piece of work a turn of the event loop, and records the attempts."""

    def __init__(self) -> None:
        self.tried: list[tuple[str, int]] = []
        """The expression of each slice, and the number of texts on which it was tried."""
        self.has_tried = asyncio.Event()

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        if function is expressions.matching:
            self.tried.append((args[0], len(args[1])))
            self.has_tried.set()
        return function(*args, **kwargs)


def run(story: Callable[[PatternMatching, Worker], Awaitable[None]]) -> None:
    async def main() -> None:
        worker = Worker()
        matching = PatternMatching(worker)
        running = asyncio.create_task(matching.run())
        await story(matching, worker)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_members_that_ask_for_the_same_share_a_lookup() -> None:
    async def story(matching: PatternMatching, worker: Worker) -> None:
        topics = Topics("flights_a", "flights_b", "other")
        wanted = frozenset({"flights_.*"})
        found = await asyncio.gather(*(matching.topics_named(wanted, topics) for _ in range(100)))
        assert all(each.names == {"flights_.*": {"flights_a", "flights_b"}} for each in found)
        assert all(each.topics is topics.topics for each in found)
        assert worker.tried == [("flights_.*", 3)]

    run(story)


def test_only_new_topics_are_tried() -> None:
    async def story(matching: PatternMatching, worker: Worker) -> None:
        wanted = frozenset({"a.*"})
        await matching.topics_named(wanted, Topics("a1", "b1"))
        found = await matching.topics_named(wanted, Topics("a1", "a2"))
        assert found.names == {"a.*": {"a1", "a2"}}
        assert worker.tried == [("a.*", 2), ("a.*", 1)]

    run(story)


def test_a_cheap_expression_does_not_wait_for_an_expensive_expression(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expressions, "SLICE_STEPS", 20_000)

    async def story(matching: PatternMatching, worker: Worker) -> None:
        texts = [f"flights_{number}" for number in range(1000)]
        expensive = asyncio.create_task(matching.matching("(.*[ab].{20})|flights_.*", texts))
        await worker.has_tried.wait()
        before = len(worker.tried)
        assert await matching.matching("flights_7", texts[:10]) == ["flights_7"]
        assert len(worker.tried) <= before + 2, "the cheap expression came after one slice"
        assert not expensive.done()
        assert await expensive == texts
        assert max(count for _, count in worker.tried) < 100

    run(story)


def test_an_invalid_or_too_large_expression_is_refused_to_all_callers() -> None:
    async def story(matching: PatternMatching, worker: Worker) -> None:
        for pattern in ("a(", ".*[ab].{500}"):
            asked = [matching.topics_named(frozenset({pattern}), Topics("a")) for _ in range(2)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(each) for each in found] == [InvalidPattern, InvalidPattern]
        assert not worker.tried

    run(story)


def test_an_expression_without_a_client_is_skipped() -> None:
    async def story(matching: PatternMatching, worker: Worker) -> None:
        gone = asyncio.create_task(matching.matching("a", ["a"]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert await matching.matching("b", ["b"]) == ["b"]
        assert worker.tried == [("b", 1)]

    run(story)


def test_not_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_work, "EXPRESSIONS_WAITING_MAX", 2)

    async def story(matching: PatternMatching, worker: Worker) -> None:
        asked = [asyncio.create_task(matching.matching(str(n), ["1"])) for n in range(5)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        refused = [each for each in found if isinstance(each, CoordinatorRefused)]
        assert {each.code for each in refused} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert len(refused) == 3

    run(story)
