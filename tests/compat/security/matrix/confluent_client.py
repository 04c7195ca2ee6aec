"""confluent-kafka on librdkafka."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tests.compat.security.matrix.attempt import (
    REFUSED_SECONDS_MAX,
    SECONDS_MAX,
    Attempt,
    Outcome,
)

TOKEN_SECONDS = 300


class ConfluentClient:
    """Tokens come from this client's callback."""

    name = "confluent-kafka"
    mechanisms = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"})

    def run(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """Run one attempt after the other."""
        return [_refused(each) if each.is_refused else _served(each) for each in attempts]


def _config(attempt: Attempt) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": attempt.bootstrap,
        "security.protocol": "SASL_SSL" if attempt.mechanism else "SSL",
        "ssl.ca.location": attempt.authority,
        "log_level": 0,
    }
    if attempt.certificate:
        config["ssl.certificate.location"] = config["ssl.key.location"] = attempt.certificate
    if attempt.mechanism:
        config["sasl.mechanism"] = attempt.mechanism
    if attempt.token:
        config["oauth_cb"] = lambda _config: (attempt.token, time.time() + TOKEN_SECONDS)
    elif attempt.username:
        config |= {"sasl.username": attempt.username, "sasl.password": attempt.password}
    return config


def _served(attempt: Attempt) -> Outcome:
    config = _config(attempt)
    alone, in_transaction = attempt.values
    producer = Producer(config)
    producer.produce(attempt.topic, alone.encode())
    assert producer.flush(SECONDS_MAX) == 0
    producer = Producer(config | {"transactional.id": f"{attempt.topic} {attempt.name}"})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(attempt.topic, in_transaction.encode())
    producer.commit_transaction(SECONDS_MAX)
    group = {"group.id": f"{attempt.topic} {attempt.name}", "auto.offset.reset": "earliest"}
    consumer = Consumer(config | group)
    consumer.subscribe([attempt.topic])
    left, consumed = set(attempt.values), []
    try:
        while left:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, f"{attempt.name} consumed {consumed}"
            assert message.error() is None, message.error()
            value = (message.value() or b"").decode()
            if value in left:
                left.remove(value)
                consumed.append(value)
    finally:
        consumer.close()
    return Outcome(tuple(consumed))


def _refused(attempt: Attempt) -> Outcome:
    heard: list[KafkaError] = []
    producer = Producer(_config(attempt) | {"error_cb": heard.append})
    try:
        producer.list_topics(timeout=REFUSED_SECONDS_MAX)
    except KafkaException:
        producer.poll(0)
    return Outcome(error=" ".join(f"{each.name()}: {each.str()}" for each in heard))
