"""A producer: idempotent, and transactional with `transactional.id`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

import confluent_kafka
from confluent_kafka.serialization import MessageField, SerializationContext

from tidelog.errors import Refused
from tidelog.sdk.connecting import CLOCK, STEP_SECONDS, made
from tidelog.sdk.errors import (
    AbortableError,
    DeliveryError,
    FatalError,
    KafkaRequestError,
    RetriableError,
    translated,
)
from tidelog.sdk.messages import Headers
from tidelog.sdk.serializers import Serializer, serializer_of, to_bytes
from tidelog.sdk.settings import producer_configuration
from tidelog.sdk.transactions import Transaction, TransactionEnds

POLL_EVERY: Final = 64
"""Messages between two looks at delivery reports."""
_ANY_PARTITION: Final = -1


class Delivery:
    """The outcome of one send."""

    __slots__ = ("_error", "_place", "_producer")

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._place: tuple[int, int] | None = None
        self._error: DeliveryError | None = None

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self._place is not None or self._error is not None

    def result(self, timeout: float | None = None) -> tuple[int, int]:
        """The message's partition and offset. Waits until it is durable.

        Raises DeliveryError; RetriableError after `timeout` seconds: the outcome is still open.
        """
        self._producer.wait_until(lambda: self.is_done, timeout)
        if self._error is not None:
            raise self._error
        assert self._place is not None
        return self._place

    def _report(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        """Called by librdkafka within `poll` and `flush`."""
        if error is None:
            # Of a batch that the broker had already, the client may not know the offset.
            self._place = (message.partition() or 0, message.offset() or 0)
            return
        what = f"message to {message.topic()}"
        self._error = DeliveryError(f"{what}: {error.str()} ({error.name()})", error.name())
        self._producer.failed(self._error)


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
        configuration = producer_configuration(bootstrap, settings)
        self._key = serializer_of("key_serializer", key_serializer)
        self._value = serializer_of("value_serializer", value_serializer)
        self.block_ms_max = configuration.block_ms_max
        """`max.block.ms`."""
        self.transactional_id: str | None = configuration.passed.get("transactional.id")
        self._client = made(confluent_kafka.Producer, configuration.passed)
        self._ends = (
            None
            if self.transactional_id is None
            else TransactionEnds(self._client, self.transactional_id, self.block_ms_max)
        )
        self._failures: list[DeliveryError] = []
        self._failures_left_out = 0
        self._unpolled = 0
        self._is_closed = False

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
        if self._is_closed:
            raise Refused("the producer is closed")
        if self._ends is not None and not self._ends.is_open:
            raise Refused(
                f"transactional.id={self.transactional_id}: send within"
                " `with producer.transaction():`"
            )
        sent_headers = _pairs(headers)
        encoded_key = self._encode(self._key, key, topic, MessageField.KEY, sent_headers)
        encoded = self._encode(self._value, value, topic, MessageField.VALUE, sent_headers)
        delivery = Delivery(self)
        arguments: dict[str, Any] = {"on_delivery": delivery._report}
        if sent_headers is not None:
            arguments["headers"] = sent_headers
        if timestamp is not None:
            arguments["timestamp"] = timestamp
        self._produce(
            topic,
            encoded,
            encoded_key,
            _ANY_PARTITION if partition is None else partition,
            arguments,
        )
        self._unpolled += 1
        if self._unpolled >= POLL_EVERY:
            self._unpolled = 0
            self._client.poll(0)
        return delivery

    def flush(self, timeout: float | None = None) -> None:
        """Return when all messages that were sent are durable.

        Raises DeliveryError if a message failed since the last flush; RetriableError after
        `timeout` seconds: some are still on their way.
        """
        self.wait_until(lambda: len(self._client) == 0, timeout)
        failures, left_out = self._failures, self._failures_left_out
        self._failures, self._failures_left_out = [], 0
        if failures:
            first, others = failures[0], len(failures) - 1 + left_out
            if not others:
                raise first
            raise DeliveryError(f"{first}; and {others} more messages failed", first.name)

    def init_transactions(self) -> None:
        """Fence other producers of this transactional id and end their open transaction.

        The first `transaction()` does it too. Raises RetriableError after `max.block.ms`.
        """
        self._transaction_ends().initialise()

    def transaction(self, *, commit_timeout: float | None = None) -> Transaction:
        """A transaction, as a context manager: it commits, or aborts on an exception.

        A commit that is not answered is repeated, never aborted: for `commit_timeout` seconds, then
        CommitOutcomeUnknown. None: until the outcome is known.

        Raises ProducerFencedError, AbortableError, RetriableError, FatalError.
        """
        return Transaction(self, self._transaction_ends(), commit_timeout)

    def resume_commit(self) -> None:
        """Repeat a commit whose outcome is unknown, until it is known.

        Returns if it is committed. Raises as `transaction` does.
        """
        self._transaction_ends().settle()

    def close(self) -> None:
        """Flush, raise what `flush` raises, and close the connections.

        An open transaction is aborted. A commit that is not answered stays as it is.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._ends is None:
                self.flush()
            elif self._ends.is_open:
                self._ends.abort()
        finally:
            # librdkafka's own close aborts first, and would wait for the broker's answer.
            if self._ends is None or self._ends.is_settled:
                self._client.close()

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

    def wait_until(self, is_so: Callable[[], bool], timeout: float | None) -> None:
        """Serve delivery reports until `is_so()`. RetriableError after `timeout` seconds."""
        deadline = None if timeout is None else CLOCK.monotonic() + timeout
        while not is_so():
            left = STEP_SECONDS if deadline is None else deadline - CLOCK.monotonic()
            if left <= 0:
                raise RetriableError(
                    f"{len(self._client)} messages are not delivered after {timeout} s; wait"
                    " longer: they are on their way until delivery.timeout.ms"
                )
            self._client.poll(min(left, STEP_SECONDS))

    def failed(self, failure: DeliveryError) -> None:
        """Note a delivery's failure, for `flush`."""
        if len(self._failures) < POLL_EVERY:
            self._failures.append(failure)
        else:
            self._failures_left_out += 1

    def forget_failures(self) -> None:
        """The transaction's end has told of them."""
        self._failures, self._failures_left_out = [], 0

    def _transaction_ends(self) -> TransactionEnds:
        if self._is_closed:
            raise Refused("the producer is closed")
        if self._ends is None:
            raise Refused(
                "this producer has no transactional.id: make it with"
                ' Producer(bootstrap, transactional_id="...")'
            )
        return self._ends

    def _encode(
        self,
        serializer: Serializer | None,
        given: Any,
        topic: str,
        field: MessageField,
        headers: list[tuple[str, bytes | str | None]] | None,
    ) -> bytes | None:
        if serializer is None:
            return to_bytes(given)
        return serializer(given, SerializationContext(topic, field, headers))

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        arguments: Mapping[str, Any],
    ) -> None:
        deadline: float | None = None
        while True:
            try:
                self._client.produce(topic, value, key, partition, **arguments)
                return
            except BufferError as error:
                now = CLOCK.monotonic()
                deadline = now + self.block_ms_max / 1000 if deadline is None else deadline
                if now >= deadline:
                    raise RetriableError(
                        f"the queue has no room after max.block.ms={self.block_ms_max}; the message"
                        " was not taken. Send it again later"
                    ) from error
                self._client.poll(min(STEP_SECONDS, deadline - now))
            except confluent_kafka.KafkaException as error:
                raise self._refusal(translated(error, f"message to {topic}")) from error

    def _refusal(self, failure: KafkaRequestError) -> KafkaRequestError:
        """What the refusal of a message means for its transaction."""
        if self._ends is not None and isinstance(failure, FatalError):
            return self._ends.died(failure)
        if self._ends is not None and failure.name == "_STATE":
            # An earlier message of the transaction has failed.
            return AbortableError(f"{failure}; the transaction must be aborted", failure.name)
        return failure


def _pairs(headers: Headers | None) -> list[tuple[str, bytes | str | None]] | None:
    if not headers:
        return None
    return list(headers.items() if isinstance(headers, Mapping) else headers)
