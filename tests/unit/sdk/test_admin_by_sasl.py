"""The requests that Admin sends itself are protected like those of librdkafka."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.authentication.test_kafka_clients_by_sasl import (
    SECRET,
    create_users,
    secured,
)
from tests.unit.broker.one_broker import run
from tests.unit.broker.transactional_client import TransactionalClient
from tidelog import Admin
from tidelog.errors import InvalidConfiguration, TidelogError
from tidelog.protocol.error_codes import ErrorCode


def admin(address: str, **settings: str) -> Admin:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"}
    return Admin(address, **(login | {"sasl_username": "alice"} | settings))


def test_transactions_are_listed_with_a_login() -> None:
    async def story() -> None:
        async with secured() as (one, plain, closed):
            await asyncio.to_thread(create_users, plain, ("SCRAM-SHA-256", "alice", SECRET))
            producer = TransactionalClient(one)
            assert await producer.init() is ErrorCode.NONE
            known = admin(closed, sasl_password=SECRET)
            assert await asyncio.to_thread(known.transactions) == {"t": "Empty"}
            assert (await asyncio.to_thread(known.transaction, "t")).state == "Empty"
            unknown = admin(closed, sasl_password="wrong")
            with pytest.raises(TidelogError, match="SASL_AUTHENTICATION_FAILED"):
                await asyncio.to_thread(unknown.transactions)

    run(story)


def test_a_setting_that_only_librdkafka_knows_is_named() -> None:
    one = Admin(
        "127.0.0.1:1", security_protocol="SSL", ssl_cipher_suites="ECDHE-RSA-AES128-GCM-SHA256"
    )
    with pytest.raises(InvalidConfiguration, match=r"unknown property ssl\.cipher\.suites"):
        one.transactions()
