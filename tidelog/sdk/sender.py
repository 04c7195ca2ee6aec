"""Shared by the producers of both kinds: a message's way to librdkafka, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import index
from threading import Event, RLock, get_ident
from typing import Any, Final, TypeAlias

import confluent_kafka
from confluent_kafka.serialization import MessageField, SerializationContext

from tidelog.errors import Refused
from tidelog.sdk.connecting import (
    CLOCK,
    FORKED,
    STEP_SECONDS,
    ends_at_fork,
    logger,
    made,
    never_freed,
    serve_callbacks,
)
from tidelog.sdk.errors import (
    AbortableError,
    DeliveryError,
    FatalError,
    KafkaRequestError,
    RetriableError,
    translated,
)
from tidelog.sdk.messages import Headers
from tidelog.sdk.serializers import NotSerializable, Serializer, serializer_of, to_bytes
from tidelog.sdk.settings import producer_configuration
from tidelog.sdk.transactions import CLOSED, TransactionEnds

FAILURES_MAX: Final = 64
"""Failures that a producer keeps for its next flush; it counts the others."""
_ANY_PARTITION: Final = -1
_NO_OFFSET: Final = -1
"""As with the Java client: with `acks=0`, and perhaps of a batch that the broker had already."""
_NO_OPTIONS: Final[dict[str, Any]] = {}


class DeliveryOutcome:
    """The outcome of one message."""

    __slots__ = ("_outcome", "_sender")

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._outcome: tuple[int, int] | DeliveryError | None = None

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self._outcome is not None

    def _place(self) -> tuple[int, int]:
        """The partition and offset of a message that is not on its way. Raises DeliveryError."""
        if self._outcome is None:
            raise report_lost()
        if isinstance(self._outcome, DeliveryError):
            raise self._outcome
        return self._outcome

    def __call__(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        """librdkafka's callback, within `poll` and `flush`: itself, without an object for it."""
        if error is None:
            offset = message.offset()
            self._outcome = (message.partition() or 0, _NO_OFFSET if offset is None else offset)
            return
        what = f"message to {message.topic()}"
        failure = DeliveryError(f"{what}: {error.str()} ({error.name()})", error.name())
        self._outcome = failure
        self._sender.failed(failure)


def report_lost() -> DeliveryError:
    """The error of a message whose delivery report did not run."""
    return DeliveryError(
        "an interruption, such as Ctrl-C, has taken the outcome of a message away: it may be in its"
        " topic, or not"
    )


Produced: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments with which librdkafka takes a message."""


class Sender:
    """Hands messages over to librdkafka, and keeps the failures of those not delivered."""

    def __init__(
        self,
        bootstrap: str,
        key_serializer: Serializer | str | None,
        value_serializer: Serializer | str | None,
        settings: Mapping[str, Any],
    ) -> None:
        """Connects in the background. Raises InvalidConfiguration."""
        configuration = producer_configuration(bootstrap, settings)
        self._key = serializer_of("key_serializer", key_serializer)
        self._value = serializer_of("value_serializer", value_serializer)
        self.block_ms_max = configuration.block_ms_max
        """`max.block.ms`."""
        self.transactional_id: str | None = configuration.passed.get("transactional.id")
        self.client = made(confluent_kafka.Producer, configuration.passed)
        self._produce = self.client.produce
        self.ends = (
            None
            if self.transactional_id is None
            else TransactionEnds(self.client, self.transactional_id, self.block_ms_max)
        )
        self.is_closed = self.is_forked = False
        self._closing = RLock()
        self._closing_thread: int | None = None
        self._no_close_runs = Event()
        """Cleared while librdkafka closes."""
        self._no_close_runs.set()
        ends_at_fork(self)
        self._failures: list[DeliveryError] = []
        self._failures_left_out = 0

    def hand_over(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
        delivery: DeliveryOutcome,
    ) -> Produced | None:
        """Hand a message over to librdkafka's queue. Returns it, for `offer`, if there is no room.

        Raises NotSerializable, Refused, KafkaRequestError.
        """
        if self.is_closed:
            raise self._closed()
        if self.ends is not None and not self.ends.is_open:
            raise Refused(
                f"transactional.id={self.transactional_id}: send within"
                " `with producer.transaction():`"
            )
        if headers is None and timestamp is None:
            pairs, options = None, _NO_OPTIONS
        else:
            pairs, options = _options(headers, timestamp)
        if self._key is not None:
            key = self._key(key, SerializationContext(topic, MessageField.KEY, pairs))
        elif key is not None and type(key) is not bytes:
            key = to_bytes(key)
        if self._value is not None:
            value = self._value(value, SerializationContext(topic, MessageField.VALUE, pairs))
        elif type(value) is not bytes:
            value = to_bytes(value)
        number = _ANY_PARTITION if partition is None else partition
        try:
            self._produce(topic, value, key, number, delivery, **options)
        except UnicodeEncodeError as error:
            raise NotSerializable(f"the topic or a header has no UTF-8: {error}") from error
        except (TypeError, OverflowError) as error:
            raise NotSerializable(
                f"a message has no such topic, key, value, headers, partition or timestamp: {error}"
            ) from error
        except (BufferError, confluent_kafka.KafkaException):
            message = (topic, value, key, number, delivery), options
            return None if self.offer(message) else message
        return None

    def offer(self, message: Produced) -> bool:
        """Hand over a message that was not taken; False if the queue still has no room.

        Raises Refused, KafkaRequestError.
        """
        if self.is_closed:
            raise self._closed()
        arguments, options = message
        try:
            self._produce(*arguments, **options)
        except BufferError:
            return False
        except confluent_kafka.KafkaException as error:
            raise self._refusal(translated(error, f"message to {arguments[0]}")) from error
        return True

    @property
    def is_empty(self) -> bool:
        """Whether no message is on its way."""
        # During librdkafka's close its queue says that it is empty, and may not be.
        return self._no_close_runs.is_set() and len(self.client) == 0

    @property
    def closes_here(self) -> bool:
        """Whether a signal's handler or a callback runs within this thread's `close_client`."""
        return self._closing_thread == get_ident()

    def close_client(self) -> None:
        """librdkafka's close. It waits for the messages that are on their way, and tells them.

        Ctrl-C may end it before its work. Then the client is still open; or confluent-kafka has
        closed it, and dropped the messages with their reports. A further close ends the work.
        """
        with self._closing:
            left = len(self.client)
            try:
                self._closing_thread = get_ident()
                self._no_close_runs.clear()
                self.client.close()
            except BaseException:
                if left and len(self.client) == 0:
                    self.failed(report_lost())
                raise
            finally:
                self._no_close_runs.set()
                self._closing_thread = None

    def serve(self, seconds: float) -> None:
        """Serve delivery reports; wait up to `seconds` for the first."""
        if not self._no_close_runs.is_set():
            self._no_close_runs.wait(seconds)
            return
        try:
            if self.ends is not None:
                self.ends.serve(seconds)
            else:
                serve_callbacks(self.client, seconds)
        except KeyboardInterrupt as interruption:
            if isinstance(interruption.__cause__, SystemError):
                self.failed(report_lost())
            raise
        except confluent_kafka.KafkaException as error:
            # Fatal: the messages on their way fail, and the next send does.
            logger.warning("producer failed", extra={"reason": str(error)})
        except RuntimeError:
            # Another thread may have begun to close since: librdkafka then refuses all calls.
            if not self.is_closed:
                raise

    def wait_until(self, is_so: Callable[[], bool], timeout: float | None) -> None:
        """Serve delivery reports until `is_so()`. RetriableError after `timeout` seconds."""
        deadline = None if timeout is None else CLOCK.monotonic() + timeout
        while not is_so():
            if self.is_forked:
                raise self._closed()
            left = STEP_SECONDS if deadline is None else deadline - CLOCK.monotonic()
            self.serve(max(0.0, min(left, STEP_SECONDS)))
            if left <= 0 and not is_so():
                raise self.not_delivered(timeout or 0)

    def no_room(self) -> RetriableError:
        """The error of a send that waited for room in vain."""
        return RetriableError(
            f"the queue has no room after max.block.ms={self.block_ms_max}; the message was not"
            " taken. Send it again later"
        )

    def not_delivered(self, timeout: float) -> RetriableError:
        """The error of a call that waited for deliveries in vain."""
        # During librdkafka's close their number is unknown.
        return RetriableError(
            f"{len(self.client) or 'some'} messages are not delivered after {timeout} s; wait"
            " longer: they are on their way until delivery.timeout.ms"
        )

    def failed(self, failure: DeliveryError) -> None:
        """Note a delivery's failure, for `flush`."""
        if len(self._failures) < FAILURES_MAX:
            self._failures.append(failure)
        else:
            self._failures_left_out += 1

    def forget_failures(self) -> None:
        """The transaction's end has told of them."""
        self._failures, self._failures_left_out = [], 0

    def raise_failures(self) -> None:
        """Raises DeliveryError if messages failed since the last call."""
        failures, left_out = self._failures, self._failures_left_out
        self.forget_failures()
        if failures:
            first, others = failures[0], len(failures) - 1 + left_out
            if not others:
                raise first
            raise DeliveryError(f"{first}; and {others} more messages failed", first.name)

    def forked(self) -> None:
        """This process is a child of the producer's: its messages are the parent's."""
        self.is_closed = self.is_forked = True
        never_freed(self.client)
        if self.ends is not None:
            self.ends.died(FatalError(f"the producer {FORKED}"))

    def _closed(self) -> Refused:
        return Refused(f"the producer {FORKED}" if self.is_forked else CLOSED)

    def transaction_ends(self) -> TransactionEnds:
        """Raises Refused for a producer without transactions."""
        if self.is_closed:
            raise self._closed()
        if self.ends is None:
            raise Refused(
                "this producer has no transactional.id: make it with"
                ' Producer(bootstrap, transactional_id="...")'
            )
        return self.ends

    def _refusal(self, failure: KafkaRequestError) -> KafkaRequestError:
        """The error of a refused message, by the effect on its transaction."""
        if self.ends is not None and isinstance(failure, FatalError):
            return self.ends.died(failure)
        if self.ends is not None and failure.name == "_STATE":
            # An earlier message of the transaction has failed.
            return AbortableError(f"{failure}; the transaction must be aborted", failure.name)
        return failure


def _options(
    headers: Headers | None, timestamp: int | None
) -> tuple[list[tuple[str, bytes | str | None]] | None, dict[str, Any]]:
    """The headers as pairs, and librdkafka's arguments that most messages do not need.

    Raises Refused, NotSerializable.
    """
    options: dict[str, Any] = {}
    pairs = None
    if headers:
        pairs = _pairs(headers)
        options["headers"] = pairs
    if timestamp is not None:
        try:
            timestamp = index(timestamp)
        except TypeError as error:
            raise NotSerializable(
                f"a timestamp is a whole number of milliseconds since 1970, not {timestamp!r}:"
                " give int(time.timestamp() * 1000) for a datetime"
            ) from error
        if timestamp == 0:
            # librdkafka's own mark of a message without a timestamp.
            raise Refused(
                "timestamp=0: librdkafka would send the present time in its place; nothing was"
                " sent. The earliest time that it sends is 1"
            )
        if timestamp < 0:
            raise Refused(
                f"timestamp={timestamp} is before 1970, as no message's time may be; nothing was"
                " sent. Leave it out to send the present time"
            )
        options["timestamp"] = timestamp
    return pairs, options


def _pairs(headers: Headers) -> list[tuple[str, bytes | str | None]]:
    """The headers as librdkafka takes them. Raises NotSerializable."""
    try:
        pairs = [
            (name, value)
            for name, value in (headers.items() if isinstance(headers, Mapping) else headers)
        ]
    except (TypeError, ValueError) as error:
        raise NotSerializable(
            "headers are a mapping of names to values or a sequence of pairs (name, value), not"
            f" {headers!r}"
        ) from error
    for name, _ in pairs:
        # confluent-kafka sends the repr of other names, and dies of a text without UTF-8.
        if not isinstance(name, str):
            raise NotSerializable(f"the name of a header is text, not {type(name).__name__}")
        to_bytes(name)
    return pairs
