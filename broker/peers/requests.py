"""Sends requests of one kind to other brokers. Items that wait for one broker share a request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from tidelog.broker.peers.metrics import PeerMetrics
from tidelog.client.connections import Connections
from tidelog.client.settings import ClientSettings
from tidelog.clock import Clock
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.entropy import Entropy
from tidelog.errors import TidelogError, Unreachable
from tidelog.identifiers import Epoch
from tidelog.network import Network
from tidelog.protocol.message import Request, Response

R = TypeVar("R", bound=Response)


class PeerUnreachable(Unreachable):
    """Another broker gave no answer. The request may have taken effect there."""


class PeerConnections:
    """Connections to live incarnations, opened on demand: one for each purpose.

    A broker answers a connection's requests in order. With one connection for all purposes, an
    answer that waits for a PUT would hold up those that do not.

    The address may meanwhile belong to a later incarnation. A request names no incarnation, so
    that one answers for its own partitions. An answer of an earlier incarnation can only come
    over its own connection, which `drop` closes.
    """

    def __init__(
        self, network: Network, state: Callable[[], ClusterState], settings: ClientSettings
    ) -> None:
        self._state = state
        self._connections: Connections[tuple[Epoch, str]] = Connections(network, settings)

    async def request(self, peer: Epoch, purpose: str, message: Request[R]) -> R:
        """Ask an incarnation once. Raises PeerUnreachable."""
        info = self._state().brokers.get(peer)
        if info is None or info.fenced:
            raise PeerUnreachable(f"broker incarnation {peer} is fenced")
        try:
            connection = await self._connections.get((peer, purpose), (info.host, info.port))
            return await connection.request(message)
        except TidelogError as error:
            raise PeerUnreachable(f"broker {info.broker_id}: {error}") from error

    def drop(self, peer: Epoch, purpose: str) -> None:
        """Close the connection to an incarnation that has ended."""
        self._connections.abort((peer, purpose), "the broker's incarnation has ended")

    async def close(self) -> None:
        """Close all connections. Unanswered requests fail."""
        await self._connections.close()


WAITING_MAX: Final = 10_000
"""Items that wait for one broker."""
IN_FLIGHT_MAX: Final = 8
"""Requests of one kind to one broker without an answer."""
SIZE_MAX: Final = 1_000
"""The size of the items in one request, unless a single item is larger. It bounds the time for
which a request occupies the other broker."""
BACKOFF_SECONDS_MIN: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 1.0
"""Waits after failures double between these two, with jitter. Kafka's reconnect.backoff."""
_JITTER: Final = 0.2

ItemT = TypeVar("ItemT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)
ReplyT = TypeVar("ReplyT")
ReplyT_co = TypeVar("ReplyT_co", covariant=True)
ResponseT = TypeVar("ResponseT", bound=Response)


class Form(Protocol[ItemT_contra, ResponseT, ReplyT_co]):
    """How items become a request, and its response their replies. Pure."""

    @property
    def purpose(self) -> str:
        """The name of the connection that carries the requests."""
        ...

    def size(self, item: ItemT_contra) -> int:
        """The size of an item in a request: the number of its partitions."""
        ...

    def request(self, items: Sequence[ItemT_contra]) -> Request[ResponseT]:
        """The request with all items."""
        ...

    def replies(self, items: Sequence[ItemT_contra], response: ResponseT) -> Sequence[ReplyT_co]:
        """One reply for each item. Raises TidelogError if the response does not answer all."""
        ...


@dataclass(slots=True, eq=False)
class _Lane(Generic[ItemT, ReplyT]):
    """The items and the requests for one broker."""

    waiting: deque[tuple[ItemT, asyncio.Future[ReplyT]]] = field(default_factory=deque)
    exchanges: set[asyncio.Task[None]] = field(default_factory=set)
    is_scheduled: bool = False
    failures: int = 0
    """Failures in a row."""
    not_before: float = 0.0
    """When the next request may be sent, on the monotonic clock."""


class PeerRequests(Generic[ItemT, ReplyT]):
    """Sends items to brokers. An item that gets no reply fails with PeerUnreachable.

    Then its effect is unknown, and the caller decides whether to ask again. Nothing is retried
    here. Items that come in the same turn of the event loop share a request. So do items that wait
    while IN_FLIGHT_MAX requests are unanswered, or during the pause after a failure of the broker.
    """

    def __init__(
        self,
        connections: PeerConnections,
        clock: Clock,
        entropy: Entropy,
        form: Form[ItemT, Any, ReplyT],
        metrics: PeerMetrics,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._entropy = entropy
        self._form = form
        self._metrics = metrics
        self._in_flight_max = in_flight_max
        self._lanes: dict[Epoch, _Lane[ItemT, ReplyT]] = {}

    @property
    def peers(self) -> Sequence[Epoch]:
        """The incarnations that were asked and not dropped."""
        return tuple(self._lanes)

    def ask(self, peer: Epoch, item: ItemT) -> asyncio.Future[ReplyT]:
        """Ask an incarnation; fails with PeerUnreachable. A cancelled item is not sent."""
        future: asyncio.Future[ReplyT] = asyncio.get_running_loop().create_future()
        lane = self._lanes.setdefault(peer, _Lane())
        if len(lane.waiting) < WAITING_MAX:
            lane.waiting.append((item, future))
            self._schedule(peer, lane)
        else:
            _fail([future], PeerUnreachable(f"{WAITING_MAX} {self._form.purpose} wait already"))
        return future

    def drop(self, peer: Epoch) -> None:
        """Fail the items for an incarnation that has ended, and close its connection."""
        lane = self._lanes.pop(peer, None)
        if lane is not None:
            for exchange in lane.exchanges:
                exchange.cancel()
            ended = PeerUnreachable(f"broker incarnation {peer} has ended")
            _fail([future for _, future in lane.waiting], ended)
            lane.waiting.clear()
        self._connections.drop(peer, self._form.purpose)

    async def close(self) -> None:
        """Fail all items."""
        exchanges = [each for lane in self._lanes.values() for each in lane.exchanges]
        for peer in self.peers:
            self.drop(peer)
        await asyncio.gather(*exchanges, return_exceptions=True)

    def _schedule(self, peer: Epoch, lane: _Lane[ItemT, ReplyT]) -> None:
        has_room = len(lane.exchanges) < self._in_flight_max
        if lane.waiting and has_room and not lane.is_scheduled:
            lane.is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin, peer, lane)

    def _begin(self, peer: Epoch, lane: _Lane[ItemT, ReplyT]) -> None:
        exchange = asyncio.create_task(self._exchange(peer, lane), name=self._form.purpose)
        lane.exchanges.add(exchange)
        exchange.add_done_callback(lambda done: self._ended(peer, lane, done))

    def _ended(self, peer: Epoch, lane: _Lane[ItemT, ReplyT], exchange: asyncio.Task[None]) -> None:
        lane.exchanges.discard(exchange)
        self._schedule(peer, lane)

    async def _exchange(self, peer: Epoch, lane: _Lane[ItemT, ReplyT]) -> None:
        """Send one request with waiting items, after the pause that a failed broker gets."""
        await self._leave_alone(lane)
        taken = self._take(lane)
        lane.is_scheduled = False
        self._schedule(peer, lane)
        if not taken:
            return
        items, futures = [item for item, _ in taken], [future for _, future in taken]
        failure: TidelogError = PeerUnreachable("the request was cut off")
        self._metrics.requests[self._form.purpose] += 1
        try:
            response: Response = await self._connections.request(
                peer, self._form.purpose, self._form.request(items)
            )
            replies = self._form.replies(items, response)
            lane.failures = 0
            for future, reply in zip(futures, replies, strict=True):
                if not future.done():
                    future.set_result(reply)
        except TidelogError as error:
            self._metrics.failures[self._form.purpose] += 1
            self._back_off(lane)
            failure = error
        finally:
            _fail(futures, failure)

    def _take(self, lane: _Lane[ItemT, ReplyT]) -> list[tuple[ItemT, asyncio.Future[ReplyT]]]:
        """The items for one request whose callers still want a reply."""
        taken: list[tuple[ItemT, asyncio.Future[ReplyT]]] = []
        size = 0
        while lane.waiting and size < SIZE_MAX:
            item, future = lane.waiting[0]
            size += self._form.size(item)
            if taken and size > SIZE_MAX:
                break
            lane.waiting.popleft()
            if not future.done():
                taken.append((item, future))
        return taken

    async def _leave_alone(self, lane: _Lane[ItemT, ReplyT]) -> None:
        seconds = lane.not_before - self._clock.monotonic()
        if lane.failures and seconds > 0:
            await self._clock.sleep(seconds)

    def _back_off(self, lane: _Lane[ItemT, ReplyT]) -> None:
        now = self._clock.monotonic()
        if lane.failures and now < lane.not_before:
            # This request was sent beside the one that failed first.
            return
        longest = min(BACKOFF_SECONDS_MIN * 2**lane.failures, BACKOFF_SECONDS_MAX)
        lane.failures = min(lane.failures + 1, 20)
        lane.not_before = now + longest * self._entropy.uniform(1 - _JITTER, 1 + _JITTER)


def _fail(futures: Sequence[asyncio.Future[ReplyT]], error: TidelogError) -> None:
    if not isinstance(error, PeerUnreachable):
        error = PeerUnreachable(str(error))
    for future in futures:
        if not future.done():
            future.set_exception(error)
            # The caller may have gone: retrieve the error, so that the event loop logs none.
            future.exception()
