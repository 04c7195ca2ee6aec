"""Requests to other brokers: which items share a request, which are lost, and how long a failed
broker gets no requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tidelog.broker.peers.metrics import PeerMetrics
from tidelog.broker.peers.requests import (
    BACKOFF_SECONDS_MAX,
    BACKOFF_SECONDS_MIN,
    SIZE_MAX,
    WAITING_MAX,
    PeerRequests,
    PeerUnreachable,
)
from tidelog.identifiers import Epoch
from tidelog.protocol.errors import MalformedMessage

ONE, OTHER = Epoch(5), Epoch(6)


class Network:
    """The connections, the form, the clock and chance in one.

    A request is the list of its items. The response is the same list: each item is its own reply.
    """

    purpose = "tests"

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []
        self.requests: list[tuple[Epoch, list[int]]] = []
        self.answers: list[asyncio.Future[list[int]]] = []
        self.dropped: list[Epoch] = []
        self.metrics = PeerMetrics()

    async def request(self, peer: Epoch, purpose: str, message: list[int]) -> list[int]:
        assert purpose == self.purpose
        self.requests.append((peer, message))
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    def drop(self, peer: Epoch, purpose: str) -> None:
        self.dropped.append(peer)

    def answer(self, number: int) -> None:
        self.answers[number].set_result(self.requests[number][1])

    def fail(self, number: int) -> None:
        self.answers[number].set_exception(PeerUnreachable("no answer"))

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def uniform(self, low: float, high: float) -> float:
        return high


class Numbers:
    """The form."""

    purpose = Network.purpose

    def size(self, item: int) -> int:
        return item

    def request(self, items: Sequence[int]) -> Any:
        return list(items)

    def replies(self, items: Sequence[int], response: Any) -> list[int]:
        if len(response) != len(items):
            raise MalformedMessage("too short")
        return list(response)


def story_of(
    story: Callable[[PeerRequests[int, int], Network], Awaitable[None]], in_flight_max: int = 2
) -> None:
    async def main() -> None:
        network: Any = Network()
        requests: PeerRequests[int, int] = PeerRequests(
            network, network, network, Numbers(), network.metrics, in_flight_max
        )
        await story(requests, network)
        await requests.close()

    asyncio.run(main())


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_items_of_one_turn_share_a_request_to_each_broker() -> None:
    async def story(requests: PeerRequests[int, int], network: Network) -> None:
        asked = [requests.ask(ONE, 1), requests.ask(OTHER, 2), requests.ask(ONE, 3)]
        await turns()
        assert network.requests == [(ONE, [1, 3]), (OTHER, [2])]
        network.answer(0)
        network.answer(1)
        assert [await each for each in asked] == [1, 2, 3]

    story_of(story)


def test_items_behind_unanswered_requests_wait_and_share_the_next_request() -> None:
    async def story(requests: PeerRequests[int, int], network: Network) -> None:
        for item in (1, 2, 3, 4):
            requests.ask(ONE, item)
            await turns()
        assert network.requests == [(ONE, [1]), (ONE, [2])]
        network.answer(0)
        await turns()
        assert network.requests[2:] == [(ONE, [3, 4])]

    story_of(story)


def test_a_request_has_a_size_and_one_item_may_be_larger() -> None:
    async def story(requests: PeerRequests[int, int], network: Network) -> None:
        for item in (SIZE_MAX - 1, 1, 1, 5 * SIZE_MAX, 7):
            requests.ask(ONE, item)
        await turns()
        sent = [items for _, items in network.requests]
        assert sent == [[SIZE_MAX - 1, 1], [1], [5 * SIZE_MAX], [7]]

    story_of(story, in_flight_max=4)


def test_an_item_without_a_reply_fails_and_its_effect_is_unknown() -> None:
    async def story(requests: PeerRequests[int, int], network: Network) -> None:
        asked = [requests.ask(ONE, 1), requests.ask(ONE, 2)]
        await turns()
        network.fail(0)
        for each in asked:
            with pytest.raises(PeerUnreachable):
                await each
        short = requests.ask(ONE, 3)
        await turns()
        network.answers[1].set_result([])
        with pytest.raises(PeerUnreachable, match="too short"):
            await short
        assert network.metrics.requests == network.metrics.failures == {network.purpose: 2}

    story_of(story)


def test_a_broker_that_fails_is_left_alone_for_longer_and_longer() -> None:
    """The pauses grow until the broker answers. New items wait meanwhile, and share one request."""

    async def story(requests: PeerRequests[int, int], network: Network) -> None:
        for number in range(8):
            asked = [requests.ask(ONE, 1), requests.ask(ONE, 2)]
            await turns()
            assert network.requests[number] == (ONE, [1, 2])
            network.fail(number)
            await asyncio.gather(*asked, return_exceptions=True)
        longest = [min(BACKOFF_SECONDS_MIN * 2**each, BACKOFF_SECONDS_MAX) for each in range(7)]
        assert network.waits == pytest.approx([1.2 * each for each in longest])
        asked = [requests.ask(ONE, 1)]
        await turns()
        network.answer(8)
        assert await asked[0] == 1
        waits = len(network.waits)
        requests.ask(ONE, 1)
        await turns()
        assert len(network.requests) == 10
        assert len(network.waits) == waits

    story_of(story)


def test_requests_that_fail_together_count_once() -> None:
    async def story(requests: PeerRequests[int, int], network: Network) -> None:
        for item in (1, 2):
            requests.ask(ONE, item)
            await turns()
        network.fail(0)
        await turns()
        network.fail(1)
        await turns()
        requests.ask(ONE, 3)
        await turns()
        assert network.waits == pytest.approx([1.2 * BACKOFF_SECONDS_MIN])

    story_of(story)


def test_an_incarnation_that_has_ended_answers_nothing_any_more() -> None:
    """A late answer on the old connection reaches no caller."""

    async def story(requests: PeerRequests[int, int], network: Network) -> None:
        asked = []
        for item in (1, 2, 3):
            asked.append(requests.ask(ONE, item))
            await turns()
        other = requests.ask(OTHER, 4)
        await turns()
        requests.drop(ONE)
        for each in asked:
            with pytest.raises(PeerUnreachable):
                await each
        assert network.dropped == [ONE]
        assert network.answers[0].cancelled()
        network.answer(2)
        assert await other == 4
        assert requests.peers == (OTHER,)

    story_of(story)


def test_a_cancelled_request_is_not_sent() -> None:
    async def story(requests: PeerRequests[int, int], network: Network) -> None:
        gone = requests.ask(ONE, 1)
        requests.ask(ONE, 2)
        gone.cancel()
        await turns()
        assert network.requests == [(ONE, [2])]

    story_of(story)


def test_the_queue_has_a_limit() -> None:
    async def story(requests: PeerRequests[int, int], network: Network) -> None:
        for _ in range(WAITING_MAX):
            requests.ask(ONE, 1)
        with pytest.raises(PeerUnreachable, match="wait already"):
            await requests.ask(ONE, 1)

    story_of(story)
