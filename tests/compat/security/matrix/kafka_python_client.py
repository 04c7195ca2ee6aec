"""kafka-python."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.compat.security.matrix.attempt import (
    REFUSED_SECONDS_MAX,
    SECONDS_MAX,
    Attempt,
    Outcome,
    logged,
)


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


class KafkaPythonClient:
    """kafka-python's producers are idempotent, and have transactions."""

    name = "kafka-python"
    mechanisms = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"})

    def run(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """Run one attempt after the other."""
        # A producer that cannot connect leaves its sockets open until its process ends.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(_run, attempts).result()


def _run(attempts: Sequence[Attempt]) -> list[Outcome]:
    return [_refused(each) if each.is_refused else _served(each) for each in attempts]


def _config(attempt: Attempt) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap_servers": attempt.bootstrap,
        "security_protocol": "SASL_SSL" if attempt.mechanism else "SSL",
        "ssl_cafile": attempt.authority,
    }
    if attempt.certificate:
        config["ssl_certfile"] = config["ssl_keyfile"] = attempt.certificate
    if attempt.mechanism:
        config["sasl_mechanism"] = attempt.mechanism
    if attempt.token:
        config["sasl_oauth_token_provider"] = _Token(attempt.token)
    elif attempt.username:
        config["sasl_plain_username"] = attempt.username
        config["sasl_plain_password"] = attempt.password
    return config


def _served(attempt: Attempt) -> Outcome:
    config = _config(attempt)
    alone, in_transaction = attempt.values
    producer = KafkaProducer(**config)
    producer.send(attempt.topic, alone.encode()).get(SECONDS_MAX)
    producer.close()
    own_id = f"{attempt.topic} {attempt.name}"
    producer = KafkaProducer(transactional_id=own_id, **config)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(attempt.topic, in_transaction.encode()).get(SECONDS_MAX)
    producer.commit_transaction()
    producer.close()
    consumer = KafkaConsumer(
        attempt.topic,
        group_id=own_id,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        **config,
    )
    left, consumed = set(attempt.values), []
    deadline = time.monotonic() + SECONDS_MAX
    try:
        while left and time.monotonic() < deadline:
            for messages in consumer.poll(timeout_ms=500).values():
                for message in messages:
                    value = (message.value or b"").decode()
                    if value in left:
                        left.remove(value)
                        consumed.append(value)
    finally:
        consumer.close()
    return Outcome(tuple(consumed))


def _refused(attempt: Attempt) -> Outcome:
    limit = REFUSED_SECONDS_MAX * 1000
    with logged("kafka") as lines:
        try:
            producer = KafkaProducer(**_config(attempt), bootstrap_timeout_ms=limit)
        except KafkaError as caught:
            return Outcome(error="\n".join([f"{type(caught).__name__}: {caught}", *lines]))
    producer.close()
    return Outcome()
