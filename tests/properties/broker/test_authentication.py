"""Any bytes before authentication get one of Kafka's answers, or end the connection."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.broker.authentication.certificates import Authority
from tests.unit.broker.authentication.issuer import Issuer
from tests.unit.broker.authentication.test_sasl_socket import closed, plain, principal
from tests.unit.broker.authentication.test_tls import asked, connect, tls_server
from tests.unit.broker.loopback import run
from tidelog.broker.authentication.bearer_message import parse_bearer_message
from tidelog.broker.authentication.identity import Malformed, NotAuthenticated
from tidelog.broker.authentication.key_set import ALGORITHMS, UnusableKeySet, parse_key_set
from tidelog.broker.authentication.mechanisms import PlainExchange, ScramExchange
from tidelog.broker.authentication.principal_rules import NoRuleMatches, PrincipalRules
from tidelog.broker.authentication.tokens import TokenRefused, TokenTerms, header_of, identity_of
from tidelog.coordinator.cluster.records.credentials import Credentials
from tidelog.entropy import SeededEntropy
from tidelog.errors import InvalidConfiguration
from tidelog.protocol.headers import encode_request
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest
from tidelog.protocol.schemas.security.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tidelog.security.scram import ScramMechanism, Verifier
from tidelog.workers.offload import InlineOffload

_few = settings(
    max_examples=max(5, settings.default.max_examples // 10),  # type: ignore[union-attr]
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
NOW_MS = 1_700_000_000_000
ISSUER = Issuer()
KEYS = parse_key_set(ISSUER.key_set())
KEY = KEYS.keys[0]
TERMS = TokenTerms(None, frozenset(), 30, "sub", "scope", "groups")

VERIFIER = Verifier(ScramMechanism.SCRAM_SHA_256, 4096, b"salt" * 5, b"s" * 32, b"k" * 32)
CREDENTIALS = Credentials(b"decoy", {("alice", ScramMechanism.SCRAM_SHA_256): VERIFIER})

scram_letters = st.text("nyprcsivxam=,,==0123456789alice/+\0\x01\x7fäß\U0001d4b3", max_size=60)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=10,
)


def frame(request: Any, version: int) -> bytes:
    return b"".join(encode_request(request, version, 1, "fuzz"))


FRAMES = (
    frame(ApiVersionsRequest(), 2),
    frame(SaslHandshakeRequest(mechanism="PLAIN"), 0),
    frame(SaslHandshakeRequest(mechanism="PLAIN"), 1),
    frame(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1),
    frame(SaslAuthenticateRequest(auth_bytes=b"\0eve\0guess"), 1),
    frame(SaslAuthenticateRequest(auth_bytes=b"n,,n=alice,r=abc"), 2),
)
"""Requests that a client may send before it has authenticated."""


@st.composite
def altered(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes of which some are changed, cut out or added."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        where = draw(st.integers(0, len(data)))
        size = draw(st.sampled_from((0, 1, 2, 4, 16)))
        data[where : where + size] = draw(st.binary(max_size=6) | st.just(b"\x7f\xff\xff\xff"))
    return bytes(data)


async def known() -> Credentials:
    return CREDENTIALS


def refused_or_not(steps: Coroutine[Any, Any, object]) -> None:
    """Run an exchange: it ends, or raises the errors that it declares."""
    try:
        # No step waits here, so one step runs the coroutine to its end.
        steps.send(None)
    except StopIteration:
        return
    except (Malformed, NotAuthenticated) as error:
        refusal = error
    else:
        raise AssertionError("the exchange waits")
    assert "alice" not in str(refusal)


@given(st.lists(scram_letters.map(str.encode) | st.binary(max_size=80), min_size=1, max_size=3))
def test_any_message_of_scram_is_answered_or_refused(tokens: list[bytes]) -> None:
    async def steps() -> None:
        exchange = ScramExchange(ScramMechanism.SCRAM_SHA_256, known, SeededEntropy(1))
        for token in tokens:
            assert (await exchange.step(token)).identity is None

    refused_or_not(steps())


@given(
    st.sampled_from(["n,,", "y,,", "p=tls-unique,,", "n,a=bob,", "", "n,"]),
    scram_letters,
    scram_letters,
    scram_letters,
)
def test_no_last_message_without_the_proof_authenticates(
    head: str, nonce: str, channel: str, proof: str
) -> None:
    async def steps() -> None:
        exchange = ScramExchange(ScramMechanism.SCRAM_SHA_256, known, SeededEntropy(1))
        first = await exchange.step(f"{head}n=alice,r={nonce}".encode())
        told = first.message.decode().partition(",")[0]
        exchanged = await exchange.step(f"c={channel},{told},p={proof}".encode())
        raise AssertionError(f"{exchanged.identity} has no password")

    refused_or_not(steps())


@_few
@given(st.binary(max_size=80) | st.lists(scram_letters, max_size=4).map("\0".join).map(str.encode))
def test_any_message_of_plain_is_refused(token: bytes) -> None:
    async def steps() -> None:
        await PlainExchange(known, InlineOffload()).step(token)
        raise AssertionError("no password fits")

    refused_or_not(steps())


@given(
    altered(st.sampled_from([b"n,a=alice,\x01auth=Bearer abc.def.ghi\x01scope=a\x01\x01"]))
    | st.binary(max_size=200)
    | st.text("n,a=\x01 Bear.=auth\t", max_size=4000).map(str.encode)
)
def test_any_message_of_oauthbearer_is_read_or_malformed(message: bytes) -> None:
    told = ""
    try:
        found = parse_bearer_message(message)
    except Malformed as error:
        told = str(error)
    else:
        assert found.token
        assert found.token.encode() in message
    # The refusal repeats no part of the message, which may hold a token.
    assert "abc" not in told


@given(
    st.dictionaries(
        st.sampled_from(["alg", "kid", "typ", "crit", "jwk", "jku", "b64", "zip"]), json_values
    ),
    st.dictionaries(
        st.sampled_from(["sub", "exp", "iat", "nbf", "iss", "aud", "scope", "groups"]), json_values
    ),
    st.sampled_from([*ALGORITHMS, "none", "None", "HS256", "HS512", ""]),
)
def test_no_token_without_the_signature_proves_a_name(
    header: dict[str, object], claims: dict[str, object], algorithm: str
) -> None:
    parts = [{**header, "alg": algorithm}, claims]
    encoded = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts
    ]
    for signature in ("", "AAAA", encoded[0]):
        with pytest.raises(TokenRefused):
            judged(".".join([*encoded, signature]))


@given(
    st.dictionaries(
        st.sampled_from(["sub", "exp", "iat", "nbf", "iss", "aud", "scope", "groups"]), json_values
    )
)
def test_any_signed_claims_prove_a_name_or_are_refused(claims: dict[str, Any]) -> None:
    token = signed(claims)
    try:
        identity = judged(token)
    except TokenRefused:
        return
    assert identity.principal.name == claims["sub"].strip()
    assert claims["exp"] * 1000 > NOW_MS - 31_000


@given(altered(st.just(b"eyJhbGciOiJFUzI1NiIsImtpZCI6ImsxIn0.eyJzdWIiOiJhIn0.AAAA")))
def test_any_text_for_a_token_is_refused(text: bytes) -> None:
    with pytest.raises(TokenRefused):
        judged(text.decode("latin-1"))


def signed(claims: dict[str, Any]) -> str:
    """A token of the issuer with any claims."""
    payload = json.dumps(claims).encode()
    return jwt.PyJWS().encode(payload, ISSUER.key, "ES256", {"kid": ISSUER.key_id})


def judged(token: str) -> Any:
    """The identity that a token proves. Its header may name any key."""
    return identity_of(token, header_of(token), KEY, TERMS, NOW_MS)


@given(
    altered(st.just(ISSUER.key_set()))
    | json_values.map(lambda value: json.dumps({"keys": [value, value]}).encode())
    | st.dictionaries(
        st.sampled_from(["kty", "kid", "alg", "use", "crv", "x", "y", "n", "e", "k", "d"]),
        json_values | st.sampled_from(["RSA", "EC", "OKP", "oct", "P-256", "Ed25519", "AQAB"]),
    ).map(lambda key: json.dumps({"keys": [key]}).encode())
    | st.sampled_from([b"[" * 100_000, b'{"keys":' * 20_000, b'{"keys":[' + b"{}," * 300 + b"{}]}"])
)
def test_any_key_set_is_read_or_unusable(data: bytes) -> None:
    try:
        found = parse_key_set(data)
    except UnusableKeySet:
        return
    for key in found.keys:
        assert key.algorithms <= set(ALGORITHMS)


@given(
    st.text("RULE:^CN=(.*?),.*$/$1L\\U,DEFAULT", max_size=60)
    | st.tuples(st.sampled_from(["^CN=(.*?),.*$", "(", "(a+)+$", ".*"]), st.text(max_size=8)).map(
        lambda rule: f"RULE:{rule[0]}/{rule[1]}/"
    ),
    st.text("CN=aliceOU,. \\", max_size=25),
)
def test_any_mapping_rules_name_a_principal_or_are_refused(rules: str, name: str) -> None:
    try:
        principal = PrincipalRules(rules).principal(name)
    except (InvalidConfiguration, NoRuleMatches):
        return
    assert isinstance(principal, str)


@_few
@given(st.lists(altered(st.sampled_from(FRAMES)) | st.binary(max_size=60), max_size=5))
def test_a_listener_with_sasl_survives_any_frames(frames: list[bytes]) -> None:
    async def story() -> None:
        async with closed() as broker:
            attacker = await broker.connect()
            attacker.writer.write(b"".join(frames))
            attacker.writer.write_eof()
            # The server answers the requests that it understands, in small answers, and closes.
            answered = await attacker.reader.read(1 << 20)
            assert len(answered) < 100_000
            client = await broker.connect()
            await plain(client)
            assert await principal(client) == "User:alice"

    run(story())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(Path(tmp_path_factory.mktemp("authority")))


def client_hello(authority: Authority) -> bytes:
    """The first record of a good client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = authority.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@_few
@given(data=st.data())
def test_a_listener_with_tls_survives_any_records(
    authority: Authority, data: st.DataObject
) -> None:
    sent = data.draw(
        altered(st.just(client_hello(authority)))
        | st.binary(max_size=300)
        | st.binary(max_size=60).map(lambda rest: b"\x16\x03\x01\xff\xff" + rest)
    )

    async def story() -> None:
        async with tls_server(authority) as broker:
            attacker = await broker.connect()
            attacker.writer.write(sent)
            attacker.writer.write_eof()
            assert len(await ended(attacker.reader.read)) < 100_000
            assert await asked(await connect(broker, authority.client())) == "c"

    run(story())


async def ended(read: Callable[[int], Coroutine[Any, Any, bytes]]) -> bytes:
    """The broker's answer until it closes or resets the connection."""
    try:
        return await read(1 << 20)
    except ConnectionError:
        return b""
