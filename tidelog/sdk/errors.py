"""The errors of the SDK, by what the application must do next."""

from __future__ import annotations

import confluent_kafka

from tidelog.errors import TidelogError

_FENCED_CODES = frozenset(
    {
        confluent_kafka.KafkaError._FENCED,
        confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH,
        confluent_kafka.KafkaError.PRODUCER_FENCED,
    }
)
_RETRIABLE_CODES = frozenset(
    {
        confluent_kafka.KafkaError._TIMED_OUT,
        confluent_kafka.KafkaError._TIMED_OUT_QUEUE,
        confluent_kafka.KafkaError._TRANSPORT,
        confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
        confluent_kafka.KafkaError._WAIT_COORD,
        confluent_kafka.KafkaError.REQUEST_TIMED_OUT,
        # A coordinator moves or loads. librdkafka does not ask again in each call.
        confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
        confluent_kafka.KafkaError.NOT_COORDINATOR,
    }
)


class KafkaRequestError(TidelogError):
    """A call failed. `name` is Kafka's name of the error, such as `TOPIC_ALREADY_EXISTS`."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class RetriableError(KafkaRequestError):
    """The same call may succeed later. Nothing is lost."""


class AbortableError(KafkaRequestError):
    """The transaction is aborted, none of it is visible. Do its work again in a new one."""


class FatalError(KafkaRequestError):
    """The producer cannot be used any more. Close it and make a new one."""


class ProducerFencedError(FatalError):
    """Another producer has taken the transactional id over. This one must end."""


class DeliveryError(KafkaRequestError):
    """A message was not delivered. A message that timed out may be in the topic all the same."""


class CommitOutcomeUnknown(KafkaRequestError):
    """The commit was not answered in time. It may have succeeded, and is never aborted.

    The producer repeats the same commit before its next transaction. `Producer.resume_commit`
    repeats it at once.
    """


def code_of(error: confluent_kafka.KafkaException) -> int | None:
    """Kafka's code of an error, or librdkafka's; None if it has none."""
    cause = error.args[0]
    return cause.code() if isinstance(cause, confluent_kafka.KafkaError) else None


def translated(
    error: confluent_kafka.KafkaException | confluent_kafka.KafkaError, what: str
) -> KafkaRequestError:
    """The error of the SDK for one of confluent-kafka's; `what` names the failed call."""
    cause = error.args[0] if isinstance(error, confluent_kafka.KafkaException) else error
    if not isinstance(cause, confluent_kafka.KafkaError):
        return KafkaRequestError(f"{what}: {error}")
    message = f"{what}: {cause.str()} ({cause.name()})"
    kind, remedy = _kind_of(cause)
    return kind(message + remedy, cause.name())


def _kind_of(cause: confluent_kafka.KafkaError) -> tuple[type[KafkaRequestError], str]:
    if cause.code() in _FENCED_CODES:
        return ProducerFencedError, "; another producer uses this transactional.id: end this one"
    if cause.fatal():
        return FatalError, "; close this producer and make a new one"
    if cause.txn_requires_abort():
        return AbortableError, "; the transaction must be aborted and done again"
    if cause.retriable() or cause.code() in _RETRIABLE_CODES:
        return RetriableError, "; the same call may succeed later"
    return KafkaRequestError, ""
