"""An attacker learns no user's name from the work that a login causes. A weaker mechanism or a
deleted user gains an attacker nothing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Coroutine
from types import FrameType
from typing import Any

import pytest

from tests.unit.broker.authentication.test_sasl_socket import (
    CREDENTIALS,
    authenticate,
    closed,
    closings,
    handshake,
    known,
    plain,
    principal,
    scram_client,
)
from tests.unit.broker.authentication.test_tls import until
from tests.unit.broker.loopback import run
from tidelog.broker.authentication.identity import NotAuthenticated
from tidelog.broker.authentication.mechanisms import PlainExchange, ScramExchange
from tidelog.coordinator.cluster.records.credentials import Credentials
from tidelog.entropy import SeededEntropy
from tidelog.protocol.error_codes import ErrorCode
from tidelog.security.scram import ScramMechanism
from tidelog.workers.offload import InlineOffload

SHA_256 = ScramMechanism.SCRAM_SHA_256


def work_of(steps: Coroutine[Any, Any, None]) -> Counter[str]:
    """The number of calls of each function until the exchange ends, which measures the work without
    time."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            calls[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            calls[f"C {called.__qualname__}"] += 1

    sys.setprofile(note)
    try:
        steps.send(None)
    except StopIteration:
        pass
    finally:
        sys.setprofile(None)
    return calls


async def guess_by_scram(user: str, credentials: Credentials = CREDENTIALS) -> None:
    async def present() -> Credentials:
        return credentials

    exchange = ScramExchange(SHA_256, present, SeededEntropy(1))
    client = scram_client(user, "guessed", "SCRAM-SHA-256")
    answer = await exchange.step(client.get_client_first().encode())
    client.set_server_first(answer.message.decode())
    with pytest.raises(NotAuthenticated):
        await exchange.step(client.get_client_final().encode())


async def guess_by_plain(user: str) -> None:
    exchange = PlainExchange(known, InlineOffload())
    with pytest.raises(NotAuthenticated):
        await exchange.step(f"\0{user}\0guessed".encode())


def test_an_unknown_user_costs_the_same_work_as_a_wrong_password_of_scram() -> None:
    work_of(guess_by_scram("first"))  # fills caches
    wrong = work_of(guess_by_scram("alice"))
    assert wrong == work_of(guess_by_scram("sadie"))
    assert sum(wrong.values()) > 50


def test_an_unknown_user_costs_the_same_work_as_a_wrong_password_of_plain() -> None:
    work_of(guess_by_plain("first"))
    wrong, unknown = work_of(guess_by_plain("alice")), work_of(guess_by_plain("sadie"))
    assert wrong == unknown
    assert sum(count for name, count in wrong.items() if "pbkdf2" in name) == 1


def test_a_weaker_mechanism_amid_a_stronger_one_ends_the_connection() -> None:
    async def story() -> None:
        async with closed() as broker:
            client = await broker.connect()
            assert await handshake(client, "SCRAM-SHA-512") == 0
            first = scram_client("bob", "the-builder", "SCRAM-SHA-512").get_client_first()
            assert (await authenticate(client, first.encode())).error_code == 0
            request = handshake(client, "PLAIN")
            with pytest.raises((EOFError, ConnectionError)):
                await request
            await until(closings(broker, "illegal_sasl_state"))

    run(story())


def test_a_mechanism_that_the_listener_does_not_enable_is_no_way_in() -> None:
    async def story() -> None:
        async with closed(sasl_enabled_mechanisms="SCRAM-SHA-512") as broker:
            for weaker in ("PLAIN", "SCRAM-SHA-256"):
                client = await broker.connect()
                code = await handshake(client, weaker)
                assert code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
                assert await client.closed()
            client = await broker.connect()
            assert await handshake(client, "SCRAM-SHA-512") == 0
            # A message of PLAIN is no message of SCRAM.
            answer = await authenticate(client, b"\0bob\0the-builder")
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED

    run(story())


def test_a_user_deleted_while_connected_is_served_until_the_authentication_ends() -> None:
    """As in Kafka, an authentication holds for its time. The deleted user can neither renew it nor
    authenticate again."""
    present = [CREDENTIALS]

    async def read() -> Credentials:
        return present[0]

    async def story() -> None:
        async with closed(read) as broker:
            client = await broker.connect()
            assert (await plain(client)).error_code == 0
            present[0] = CREDENTIALS.changed([("alice", SHA_256)], {})
            assert await principal(client) == "User:alice"
            newcomer = await broker.connect()
            refused = await plain(newcomer)
            assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await newcomer.closed()
            renewal = await plain(client)
            assert renewal.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await client.closed()

    run(story())
