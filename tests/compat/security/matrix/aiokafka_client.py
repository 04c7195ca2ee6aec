"""aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context

from tests.compat.security.matrix.attempt import SECONDS_MAX, Attempt, Outcome, logged


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


class AioKafkaClient:
    """The error only says that the client could not connect. The log has the reason."""

    name = "aiokafka"
    mechanisms = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"})

    def run(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """Run one attempt after the other."""
        return [
            asyncio.run(_refused(each) if each.is_refused else _served(each)) for each in attempts
        ]


def _config(attempt: Attempt) -> dict[str, Any]:
    own = attempt.certificate or None
    config: dict[str, Any] = {
        "bootstrap_servers": attempt.bootstrap,
        "security_protocol": "SASL_SSL" if attempt.mechanism else "SSL",
        "ssl_context": create_ssl_context(cafile=attempt.authority, certfile=own),
    }
    if attempt.mechanism:
        config["sasl_mechanism"] = attempt.mechanism
    if attempt.token:
        config["sasl_oauth_token_provider"] = _Token(attempt.token)
    elif attempt.username:
        config["sasl_plain_username"] = attempt.username
        config["sasl_plain_password"] = attempt.password
    return config


async def _served(attempt: Attempt) -> Outcome:
    config = _config(attempt)
    alone, in_transaction = attempt.values
    async with AIOKafkaProducer(**config) as producer:
        await producer.send_and_wait(attempt.topic, alone.encode())
    own_id = f"{attempt.topic} {attempt.name}"
    async with (
        AIOKafkaProducer(transactional_id=own_id, **config) as producer,
        producer.transaction(),
    ):
        await producer.send_and_wait(attempt.topic, in_transaction.encode())
    reading = AIOKafkaConsumer(
        attempt.topic,
        group_id=own_id,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        **config,
    )
    left, consumed = set(attempt.values), []
    async with reading as consumer, asyncio.timeout(SECONDS_MAX):
        while left:
            value = ((await consumer.getone()).value or b"").decode()
            if value in left:
                left.remove(value)
                consumed.append(value)
    return Outcome(tuple(consumed))


async def _refused(attempt: Attempt) -> Outcome:
    producer = AIOKafkaProducer(**_config(attempt))
    error = ""
    with logged("aiokafka") as lines:
        try:
            await producer.start()
        except KafkaError as caught:
            error = f"{type(caught).__name__}: {caught}"
        finally:
            await producer.stop()
    return Outcome(error="\n".join([error, *lines]))
