"""Long requests are read, served and answered in slices, by turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator

import pytest

from tests.simulation.world.loop import SimulatedLoop
from tests.unit.broker.dispatch.test_request_parts import deleted, deleting, entries
from tidelog.broker.dispatch.long_requests import PARTS_IN_FLIGHT_MAX, LongRequests
from tidelog.broker.dispatch.request_parts import DIVISIONS
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.protocol.api import ApiKey
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.group_offsets import OffsetDeleteRequest
from tidelog.protocol.wire import ELEMENTS_MAX, STEP_ELEMENTS

DELETE = DIVISIONS[ApiKey.OFFSET_DELETE]
Story = Callable[[LongRequests], Awaitable[None]]


def run(story: Story, elements_max: int = 2 * ELEMENTS_MAX) -> None:
    async def main() -> None:
        await story(LongRequests(SliceTurns(), elements_max))

    with SimulatedLoop(1) as loop:
        loop.run(main())
        assert loop.unhandled == []


def reading(steps: int) -> Generator[None, None, Request[Response]]:
    for _ in range(steps):
        yield
    return OffsetDeleteRequest(group_id=str(steps))


def whole(elements: int) -> int:
    """The number of steps for this many elements."""
    return elements // STEP_ELEMENTS


# Reading.


def test_a_message_is_read_in_steps() -> None:
    async def story(requests: LongRequests) -> None:
        async with requests.read(reading(3)) as message:
            assert message == OffsetDeleteRequest(group_id="3")

    run(story)


def test_long_requests_above_the_common_limit_wait_unread() -> None:
    async def story(requests: LongRequests) -> None:
        begun: list[str] = []
        end = asyncio.Event()

        async def serve(name: str) -> None:
            async with requests.read(reading(whole(ELEMENTS_MAX))):
                begun.append(name)
                await end.wait()

        serving = [asyncio.create_task(serve(name)) for name in "abc"]
        await asyncio.sleep(1)
        assert len(begun) == 2, "there is room for two"
        end.set()
        await asyncio.gather(*serving)
        assert len(begun) == 3

    run(story)


@pytest.mark.parametrize("how", ["malformed", "cancelled while read", "cancelled while served"])
def test_a_request_that_ends_early_leaves_its_room(how: str) -> None:
    async def story(requests: LongRequests) -> None:
        def malformed() -> Generator[None, None, Request[Response]]:
            yield from reading(whole(ELEMENTS_MAX))
            raise MalformedMessage("no")

        async def serve() -> None:
            steps = malformed() if how == "malformed" else reading(whole(ELEMENTS_MAX))
            async with requests.read(steps):
                await asyncio.sleep(100)

        for _ in range(5):
            serving = asyncio.create_task(serve())
            await asyncio.sleep(0.00001 if how == "cancelled while read" else 1)
            serving.cancel()
            (error,) = await asyncio.gather(serving, return_exceptions=True)
            assert isinstance(error, MalformedMessage | asyncio.CancelledError)
        async with asyncio.timeout(10), requests.read(reading(whole(ELEMENTS_MAX))):
            pass

    run(story, ELEMENTS_MAX)


# Serving.


def test_parts_are_begun_in_order_and_answered_together() -> None:
    async def story(requests: LongRequests) -> None:
        request = deleting(("a", range(1000)), ("b", range(1000)))
        begun: list[object] = []
        at_a_time = most = 0

        async def serve(part: OffsetDeleteRequest) -> Response:
            nonlocal at_a_time, most
            begun.extend(entries(part, DELETE.entries))
            at_a_time += 1
            most = max(most, at_a_time)
            await asyncio.sleep(1)
            at_a_time -= 1
            return deleted(part)

        answer = await requests.serve(DELETE, request, serve)
        assert answer == deleted(request)
        assert begun == entries(request, DELETE.entries)
        assert 1 < most <= PARTS_IN_FLIGHT_MAX

    run(story)


def test_the_first_part_that_fails_ends_the_other_parts() -> None:
    async def story(requests: LongRequests) -> None:
        ended: list[str] = []
        begun = 0

        async def serve(part: OffsetDeleteRequest) -> Response:
            nonlocal begun
            begun += 1
            if begun == 3:
                raise RuntimeError("no")
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            return deleted(part)

        with pytest.raises(RuntimeError, match="no"):
            await requests.serve(DELETE, deleting(("a", range(10_000))), serve)
        await asyncio.sleep(0)
        assert begun <= PARTS_IN_FLIGHT_MAX + 3

    run(story)


def test_a_request_without_a_client_is_served_no_further() -> None:
    async def story(requests: LongRequests) -> None:
        begun = 0

        async def serve(part: OffsetDeleteRequest) -> Response:
            nonlocal begun
            begun += 1
            await asyncio.sleep(1)
            return deleted(part)

        request = deleting(("a", range(100_000)))
        serving = asyncio.create_task(requests.serve(DELETE, request, serve))
        await asyncio.sleep(2.5)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        before = begun
        await asyncio.sleep(100)
        assert (before, begun) == (before, before)
        assert begun < 100

    run(story)
