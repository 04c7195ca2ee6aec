"""A producer: idempotent, and transactional with `transactional.id`."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final

from tidelog.sdk.connecting import CLOCK, STEP_SECONDS
from tidelog.sdk.errors import DeliveryError
from tidelog.sdk.messages import Headers
from tidelog.sdk.sender import DeliveryOutcome, Produced, Sender
from tidelog.sdk.serializers import Serializer
from tidelog.sdk.transactions import Transaction

POLL_EVERY: Final = 64
"""Messages between two looks at delivery reports."""


class Delivery(DeliveryOutcome):
    """The outcome of one send."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> tuple[int, int]:
        """The message's partition and offset. Waits until it is durable.

        The offset is -1 if the broker does not tell it, as with `acks=0`.

        Raises DeliveryError; RetriableError after `timeout` seconds: the outcome is still open.
        """
        sender = self._sender
        sender.wait_until(lambda: self.is_done or sender.is_empty, timeout)
        return self._place()


class Producer:
    """Sends messages: `Producer("127.0.0.1:9092")`.

    Settings have Kafka's names, with dots or underscores, and the Java client's defaults:
    idempotence, `acks=all`, the Java client's partitioner. `docs/SDK.md` lists them.
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
        self._sender = Sender(bootstrap, key_serializer, value_serializer, settings)
        self._unpolled = 0

    @property
    def transactional_id(self) -> str | None:
        """`transactional.id`."""
        return self._sender.transactional_id

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        *,
        timestamp: int | None = None,
    ) -> Delivery:
        """Hand a message over for sending, and return at once.

        `flush`, the transaction's commit and `Delivery.result` tell whether it was delivered. If
        the queue is full, waits for room for `max.block.ms`, then RetriableError: the message was
        not taken. Raises NotSerializable, FatalError, KafkaRequestError.
        """
        sender = self._sender
        delivery = Delivery(sender)
        left = sender.hand_over(topic, value, key, headers, partition, timestamp, delivery)
        if left is not None:
            self._wait_for_room(left)
        self._unpolled += 1
        if self._unpolled >= POLL_EVERY:
            self._unpolled = 0
            sender.serve(0)
        return delivery

    def flush(self, timeout: float | None = None) -> None:
        """Return when all messages that were sent are durable.

        Raises DeliveryError if a message failed since the last flush; RetriableError after
        `timeout` seconds: some are still on their way.
        """
        self._sender.wait_until(lambda: self._sender.is_empty, timeout)
        self._sender.raise_failures()

    def init_transactions(self) -> None:
        """Fence other producers of this transactional id and end their open transaction.

        The first `transaction()` does it too. Raises RetriableError after `max.block.ms`.
        """
        self._sender.transaction_ends().initialise()

    def transaction(self, *, commit_timeout: float | None = None) -> Transaction:
        """A transaction, as a context manager: it commits, or aborts on an exception.

        A commit that is not answered is repeated, never aborted: for `commit_timeout` seconds, then
        CommitOutcomeUnknown. None: until the outcome is known.

        Raises ProducerFencedError, AbortableError, RetriableError, FatalError.
        """
        ends = self._sender.transaction_ends()
        return Transaction(ends, commit_timeout, self._sender.forget_failures)

    def resume_commit(self) -> None:
        """Repeat a commit whose outcome is unknown, until it is known.

        Returns if it is committed. Raises as `transaction` does.
        """
        self._sender.transaction_ends().settle()

    def close(self) -> None:
        """Flush, raise what `flush` raises, and close the connections.

        An open transaction is aborted. A commit that is not answered stays as it is.
        """
        sender = self._sender
        if sender.is_forked or sender.closes_here:
            return
        sender.is_closed = True
        # Each close waits: one before may run in another thread, or may have been interrupted.
        try:
            if sender.ends is None:
                self.flush()
            else:
                sender.ends.close()
        finally:
            # librdkafka's own close aborts first, and would wait for the broker's answer.
            if sender.ends is None or sender.ends.is_settled:
                sender.close_client()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except DeliveryError as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    def _wait_for_room(self, message: Produced) -> None:
        deadline = CLOCK.monotonic() + self._sender.block_ms_max / 1000
        while not self._sender.offer(message):
            left = deadline - CLOCK.monotonic()
            if left <= 0:
                raise self._sender.no_room()
            self._sender.serve(min(STEP_SECONDS, left))
