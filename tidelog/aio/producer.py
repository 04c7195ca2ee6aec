"""A producer for asyncio.

Handing a message over to librdkafka does not block, and the loop asks for delivery reports every
few milliseconds while messages are on their way: all reports that are there are told in one pass.
A thread that waits for them would need the interpreter's lock for each report. Calls that block
run in a thread, one after the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Mapping
from types import TracebackType
from typing import Any, Final

import confluent_kafka

from tidelog.aio.calls import BlockingCalls
from tidelog.aio.transactions import ThreadedCalls, Transaction
from tidelog.errors import Refused
from tidelog.sdk.connecting import CLOCK
from tidelog.sdk.errors import DeliveryError
from tidelog.sdk.messages import Headers
from tidelog.sdk.sender import DeliveryOutcome, Produced, Sender
from tidelog.sdk.serializers import Serializer

POLL_EVERY: Final = 64
"""Messages between two looks at delivery reports."""
POLL_SECONDS: Final = 0.001
"""Between two looks at delivery reports while messages are on their way."""


class _LoopSender(Sender):
    """Tells deliveries to the tasks of a loop."""

    loop: asyncio.AbstractEventLoop | None = None
    _is_waking = False

    def __init__(
        self,
        bootstrap: str,
        key_serializer: Serializer | str | None,
        value_serializer: Serializer | str | None,
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__(bootstrap, key_serializer, value_serializer, settings)
        self._told: deque[Delivery] = deque()

    def tell(self, delivery: Delivery) -> None:
        """Let the loop wake those who wait for a delivery, with others in one pass."""
        assert self.loop is not None
        self._told.append(delivery)
        if not self._is_waking:
            self._is_waking = True
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        # First: what another thread appends from now on asks for a pass of its own.
        self._is_waking = False
        while self._told:
            self._told.popleft().wake()


class Delivery(DeliveryOutcome):
    """The outcome of one send: `partition, offset = await delivery`."""

    __slots__ = ("_waiter",)
    _sender: _LoopSender

    def __init__(self, sender: _LoopSender) -> None:
        super().__init__(sender)
        self._waiter: asyncio.Future[None] | None = None

    async def result(self, timeout: float | None = None) -> tuple[int, int]:
        """The message's partition and offset, when it is durable.

        The offset is -1 if the broker does not tell it, as with `acks=0`.

        Raises DeliveryError; RetriableError after `timeout` seconds: the outcome is still open.
        """
        if not self.is_done:
            if self._waiter is None:
                self._waiter = asyncio.get_running_loop().create_future()
            # Again: the thread of blocking calls wakes only a waiter that it sees.
            if not self.is_done:
                # `wait` does not cancel the future, which others may wait for too.
                await asyncio.wait([self._waiter], timeout=timeout)
            if not self.is_done:
                raise self._sender.not_delivered(timeout or 0)
        return self._place()

    def __await__(self) -> Generator[Any, None, tuple[int, int]]:
        return self.result().__await__()

    def __call__(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        """librdkafka's callback, in the loop's thread or in that of blocking calls."""
        super().__call__(error, message)
        if self._waiter is not None:
            self._sender.tell(self)

    def wake(self) -> None:
        """Go on with the tasks that wait."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Producer:
    """Sends messages: `async with Producer("127.0.0.1:9092") as producer`.

    The arguments are those of `tidelog.Producer`. A producer belongs to one event loop.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        key_serializer: Serializer | str | None = None,
        value_serializer: Serializer | str | None = None,
        **settings: Any,
    ) -> None:
        """Connects in the background. Raises InvalidConfiguration."""
        self._sender = _LoopSender(bootstrap, key_serializer, value_serializer, settings)
        self._client = self._sender.client
        self._calls = BlockingCalls("producer")
        self._transactions: ThreadedCalls | None = None
        self._unpolled = 0
        self._next_poll: asyncio.TimerHandle | None = None
        self._polled: asyncio.Future[None] | None = None
        """Done when delivery reports were looked for."""

    @property
    def transactional_id(self) -> str | None:
        """`transactional.id`."""
        return self._sender.transactional_id

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        *,
        timestamp: int | None = None,
    ) -> Delivery:
        """Hand a message over for sending. Returns when librdkafka's queue has taken it.

        `flush`, the transaction's commit and the Delivery tell whether it was delivered. If the
        queue has no room for `max.block.ms`: RetriableError, the message was not taken. Raises
        NotSerializable, FatalError, KafkaRequestError.
        """
        sender = self._sender
        # Before the hand-over: if this refuses another loop's call, the message is not sent.
        self._running_loop()
        delivery = Delivery(sender)
        left = sender.hand_over(topic, value, key, headers, partition, timestamp, delivery)
        if left is not None:
            await self._wait_for_room(left)
        self._unpolled += 1
        if self._next_poll is None:
            self._poll_later()
        if self._unpolled >= POLL_EVERY:
            self._unpolled = 0
            sender.serve(0)
        return delivery

    async def flush(self, timeout: float | None = None) -> None:
        """Return when all messages that were sent are durable.

        Raises DeliveryError if a message failed since the last flush; RetriableError after
        `timeout` seconds: some are still on their way.
        """
        if not await self._poll_until(lambda: self._sender.is_empty, timeout):
            raise self._sender.not_delivered(timeout or 0)
        self._sender.raise_failures()

    async def init_transactions(self) -> None:
        """Fence other producers of this transactional id and end their open transaction.

        The first `transaction()` does it too. Raises RetriableError after `max.block.ms`.
        """
        await self._transaction_calls().initialise()

    def transaction(self, *, commit_timeout: float | None = None) -> Transaction:
        """A transaction, for `async with`: it commits, or aborts on an exception.

        A commit that is not answered is repeated, never aborted: for `commit_timeout` seconds, then
        CommitOutcomeUnknown. None: until the outcome is known. If the task is cancelled meanwhile,
        the commit goes on, and `resume_commit`, the next transaction and `close` wait for it.

        Raises ProducerFencedError, AbortableError, RetriableError, FatalError.
        """
        return Transaction(self._transaction_calls(), commit_timeout, self._delivered)

    async def resume_commit(self) -> None:
        """Wait for a commit whose task was cancelled, and repeat one whose outcome is unknown.

        Returns if it is committed. Raises as `transaction` does.
        """
        await self._transaction_calls().settle()

    async def close(self) -> None:
        """Flush, raise what `flush` raises, and close the connections.

        An open transaction is aborted. A commit that goes on is waited for, up to `max.block.ms`;
        then CommitOutcomeUnknown. Its own task raises it, or `close` if that task was cancelled.
        """
        sender = self._sender
        if sender.is_closed:
            # Of a close that was cancelled: librdkafka's own waits for the messages.
            await self._calls.idle()
            if self._transactions is not None:
                await self._transactions.outcome()
            elif not sender.is_forked:
                # One of another task, which flushes.
                await self._delivered(None)
            sender.raise_failures()
            return
        sender.is_closed = True
        try:
            if sender.ends is None:
                await self.flush()
            elif self._transactions is not None:
                await self._transactions.close(sender.block_ms_max / 1000)
        finally:
            # librdkafka's own close aborts first, and would wait for the broker's answer.
            if sender.ends is None or sender.ends.is_settled:
                closing = self._calls.begin(sender.close_client)
                self._calls.close()
                await asyncio.shield(closing)
            else:
                self._calls.close()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except DeliveryError as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    async def _delivered(self, timeout: float | None) -> None:
        """Return when no message is on its way, or after `timeout` seconds."""
        await self._poll_until(lambda: self._sender.is_empty, timeout)

    def _transaction_calls(self) -> ThreadedCalls:
        ends = self._sender.transaction_ends()
        if self._transactions is None:
            self._transactions = ThreadedCalls(ends, self._calls, self._sender.forget_failures)
        return self._transactions

    async def _wait_for_room(self, message: Produced) -> None:
        block_seconds = self._sender.block_ms_max / 1000
        if not await self._poll_until(lambda: self._sender.offer(message), block_seconds):
            raise self._sender.no_room()

    async def _poll_until(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        """Serve delivery reports until `is_so()`; False after `timeout` seconds."""
        deadline = None if timeout is None else CLOCK.monotonic() + timeout
        while not is_so():
            if deadline is not None and CLOCK.monotonic() >= deadline:
                return False
            if self._polled is None:
                self._polled = self._running_loop().create_future()
                if self._next_poll is None:
                    self._poll_later()
            await asyncio.wait([self._polled])
        return True

    def _poll_later(self) -> None:
        self._next_poll = self._running_loop().call_later(POLL_SECONDS, self._poll)

    def _poll(self) -> None:
        self._next_poll = None
        try:
            self._sender.serve(0)
        finally:
            # A callback of the settings may have raised.
            self._go_on()
            if len(self._client) > 0:
                self._poll_later()

    def _go_on(self) -> None:
        """Let those look who wait for delivery reports, or for room."""
        polled, self._polled = self._polled, None
        if polled is not None:
            polled.set_result(None)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._sender.loop is None:
            self._sender.loop = loop
        elif self._sender.loop is not loop:
            raise Refused(
                "the producer belongs to another event loop: make one in each asyncio.run"
            )
        return loop
