"""The kind of an error tells an application how to react."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from tidelog.sdk.errors import (
    AbortableError,
    FatalError,
    KafkaRequestError,
    ProducerFencedError,
    RetriableError,
    translated,
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KafkaError(KafkaError._FENCED, "fenced", fatal=True), ProducerFencedError),
        (KafkaError(KafkaError.INVALID_PRODUCER_EPOCH), ProducerFencedError),
        (KafkaError(KafkaError.PRODUCER_FENCED), ProducerFencedError),
        (KafkaError(KafkaError._FATAL, "broken", fatal=True), FatalError),
        (KafkaError(KafkaError._MSG_TIMED_OUT, "late", txn_requires_abort=True), AbortableError),
        (KafkaError(KafkaError._TIMED_OUT, "slow", retriable=True), RetriableError),
        (KafkaError(KafkaError._TIMED_OUT), RetriableError),
        (KafkaError(KafkaError.TOPIC_ALREADY_EXISTS), KafkaRequestError),
    ],
)
def test_fenced_fatal_abortable_and_retriable_are_told_apart(
    error: KafkaError, kind: type[KafkaRequestError]
) -> None:
    for given in (error, confluent_kafka.KafkaException(error)):
        found = translated(given, "commit")
        assert type(found) is kind
        assert found.name == error.name()
        assert str(found).startswith("commit: ")
