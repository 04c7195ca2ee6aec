"""What the producers of both kinds share: how a message is handed over, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import confluent_kafka
from confluent_kafka.serialization import MessageField, SerializationContext

from tidelog.errors import Refused
from tidelog.sdk.connecting import logger, made
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
from tidelog.sdk.transactions import TransactionEnds

FAILURES_MAX: Final = 64
"""Failures that a producer keeps for its next flush; it counts the others."""
_ANY_PARTITION: Final = -1


class DeliveryOutcome:
    """What became of one message."""

    __slots__ = ("_error", "_place", "_sender")

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._place: tuple[int, int] | None = None
        self._error: DeliveryError | None = None

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self._place is not None or self._error is not None

    def _outcome(self) -> tuple[int, int]:
        """The message's partition and offset. Raises DeliveryError."""
        if self._error is not None:
            raise self._error
        assert self._place is not None
        return self._place

    def report(
        self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        """Called by librdkafka within `poll` and `flush`."""
        if error is None:
            # Of a batch that the broker had already, the client may not know the offset.
            self._place = (message.partition() or 0, message.offset() or 0)
            return
        what = f"message to {message.topic()}"
        self._error = DeliveryError(f"{what}: {error.str()} ({error.name()})", error.name())
        self._sender.failed(self._error)


class Produced(NamedTuple):
    """A message as librdkafka takes it."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    options: dict[str, Any]


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
        self.ends = (
            None
            if self.transactional_id is None
            else TransactionEnds(self.client, self.transactional_id, self.block_ms_max)
        )
        self.is_closed = False
        self._failures: list[DeliveryError] = []
        self._failures_left_out = 0

    def encoded(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
        delivery: DeliveryOutcome,
    ) -> Produced:
        """The message that `offer` takes. Raises NotSerializable, Refused."""
        if self.is_closed:
            raise Refused("the producer is closed")
        if self.ends is not None and not self.ends.is_open:
            raise Refused(
                f"transactional.id={self.transactional_id}: send within"
                " `with producer.transaction():`"
            )
        sent_headers = _pairs(headers)
        encoded_key = self._encode(self._key, key, topic, MessageField.KEY, sent_headers)
        encoded = self._encode(self._value, value, topic, MessageField.VALUE, sent_headers)
        options: dict[str, Any] = {"on_delivery": delivery.report}
        if sent_headers is not None:
            options["headers"] = sent_headers
        if timestamp is not None:
            options["timestamp"] = timestamp
        number = _ANY_PARTITION if partition is None else partition
        return Produced(topic, encoded, encoded_key, number, options)

    def offer(self, message: Produced) -> bool:
        """Hand a message over; False if the queue has no room. Raises KafkaRequestError."""
        topic, value, key, partition, options = message
        try:
            self.client.produce(topic, value, key, partition, **options)
        except BufferError:
            return False
        except confluent_kafka.KafkaException as error:
            raise self._refusal(translated(error, f"message to {topic}")) from error
        return True

    def serve(self, seconds: float) -> None:
        """Serve delivery reports; wait up to `seconds` for the first."""
        if self.ends is not None:
            self.ends.serve(seconds)
            return
        try:
            self.client.poll(seconds)
        except confluent_kafka.KafkaException as error:
            # Fatal: the messages on their way fail, and the next send does.
            logger.warning("producer failed", extra={"reason": str(error)})

    def no_room(self) -> RetriableError:
        """What a send raises that waited for room in vain."""
        return RetriableError(
            f"the queue has no room after max.block.ms={self.block_ms_max}; the message was not"
            " taken. Send it again later"
        )

    def not_delivered(self, timeout: float) -> RetriableError:
        """What a call raises that waited for deliveries in vain."""
        return RetriableError(
            f"{len(self.client)} messages are not delivered after {timeout} s; wait longer: they"
            " are on their way until delivery.timeout.ms"
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

    def transaction_ends(self) -> TransactionEnds:
        """Raises Refused for a producer without transactions."""
        if self.is_closed:
            raise Refused("the producer is closed")
        if self.ends is None:
            raise Refused(
                "this producer has no transactional.id: make it with"
                ' Producer(bootstrap, transactional_id="...")'
            )
        return self.ends

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

    def _refusal(self, failure: KafkaRequestError) -> KafkaRequestError:
        """What the refusal of a message means for its transaction."""
        if self.ends is not None and isinstance(failure, FatalError):
            return self.ends.died(failure)
        if self.ends is not None and failure.name == "_STATE":
            # An earlier message of the transaction has failed.
            return AbortableError(f"{failure}; the transaction must be aborted", failure.name)
        return failure


def _pairs(headers: Headers | None) -> list[tuple[str, bytes | str | None]] | None:
    if not headers:
        return None
    return list(headers.items() if isinstance(headers, Mapping) else headers)
