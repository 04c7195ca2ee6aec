"""Each foreign client by each mechanism that it has: produce, transact, consume in a group.

Also the error that the client's user sees after a wrong password, an expired token, a wrong
authority, an expired certificate and a wrong host name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.compat.conftest import CACHE, RequireTool
from tests.compat.security.matrix.aiokafka_client import AioKafkaClient
from tests.compat.security.matrix.attempt import SecuredClient
from tests.compat.security.matrix.closed_broker import ClosedBroker, closed_broker
from tests.compat.security.matrix.confluent_client import ConfluentClient
from tests.compat.security.matrix.kafka_python_client import KafkaPythonClient
from tests.compat.security.matrix.kcat_client import KcatClient
from tests.compat.security.matrix.program_client import (
    franz_go_client,
    java_client,
    kafkajs_client,
)

pytestmark = pytest.mark.compat

WRONG_PASSWORD: Final = {
    "PLAIN": "Authentication failed: Invalid username or password",
    "SCRAM-SHA-256": "invalid credentials with SASL mechanism SCRAM-SHA-256",
    "SCRAM-SHA-512": "invalid credentials with SASL mechanism SCRAM-SHA-512",
}
"""The broker's words, which are Kafka's."""
LOST: Final = "socket disconnected"
"""kafka-python drops an answer that arrives together with the end of the TLS connection. This
happens at a refusal, since the broker closes the connection behind its answer, as Kafka does."""
INVALID_TOKEN: Final = r'\{"status":"invalid_token"\}'
PASSWORD_CLASS: Final = {
    "confluent-kafka": "^_AUTHENTICATION: ",
    "aiokafka": r"^KafkaConnectionError: .*\n.*SaslAuthenticationFailed: ",
    "kafka-python": r"^KafkaTimeoutError: (.|\n)*SaslAuthenticationFailedError: ",
    "kcat": "SASL authentication error: ",
    "Java": "^SaslAuthenticationException: ",
    "KafkaJS": "^KafkaJSSASLAuthenticationError: ",
    "franz-go": r"^\*kerr\.Error: SASL_AUTHENTICATION_FAILED: ",
}
"""The class of the error of a wrong password; the broker's words follow."""
ERRORS: Final = {
    "confluent-kafka": {
        # librdkafka may report the lost connection first.
        "wrong CA": "_SSL: .*broker certificate could not be verified",
        "expired certificate": "_SSL: .*broker certificate could not be verified",
        "wrong host name": "_SSL: .*broker certificate could not be verified",
        "expired token": f"^_AUTHENTICATION: .*{INVALID_TOKEN}",
    },
    "aiokafka": {
        "wrong CA": r"^KafkaConnectionError: .*\n.*self-signed certificate in certificate chain",
        "expired certificate": r"^KafkaConnectionError: .*\n.*certificate has expired",
        "wrong host name": r"^KafkaConnectionError: .*\n.*not valid for '127\.0\.0\.1'",
        # The client takes the broker's refusal for a success, so the broker closes the connection.
        "expired token": r"^KafkaConnectionError: .*\n.*Connection at .* closed",
    },
    "kafka-python": {
        "wrong CA": r"^KafkaTimeoutError: .*\n.*self-signed certificate in certificate chain",
        "expired certificate": r"^KafkaTimeoutError: .*\n.*certificate has expired",
        "wrong host name": r"^KafkaTimeoutError: .*\n.*not valid for '127\.0\.0\.1'",
        "expired token": (
            rf"^KafkaTimeoutError: (.|\n)*(SaslAuthenticationFailedError: {INVALID_TOKEN}|{LOST})"
        ),
    },
    "kcat": {
        "wrong CA": "SSL handshake failed: .*broker certificate could not be verified",
        "expired certificate": "SSL handshake failed: .*broker certificate could not be verified",
        "wrong host name": "SSL handshake failed: .*broker certificate could not be verified",
    },
    "Java": {
        "wrong CA": (
            r"^SslAuthenticationException: SSL handshake failed\n"
            "(.|\n)*unable to find valid certification path"
        ),
        "expired certificate": (
            r"^SslAuthenticationException: SSL handshake failed\n(.|\n)*CertificateExpiredException"
        ),
        "wrong host name": (
            r"^SslAuthenticationException: SSL handshake failed\n"
            "(.|\n)*No subject alternative names matching IP address 127.0.0.1 found"
        ),
        "expired token": f"^SaslAuthenticationException: {INVALID_TOKEN}",
    },
    "KafkaJS": {
        "wrong CA": "KafkaJSConnectionError: .*self-signed certificate in certificate chain",
        "expired certificate": "KafkaJSConnectionError: .*certificate has expired",
        "wrong host name": "KafkaJSConnectionError: .*does not match certificate's altnames",
        # The client takes the broker's refusal for a success, so the broker closes the connection.
        "expired token": "^KafkaJSConnectionClosedError: Closed connection",
    },
    "franz-go": {
        "wrong CA": r"^x509\.UnknownAuthorityError: ",
        "expired certificate": r"^x509\.CertificateInvalidError: .*expired",
        "wrong host name": r"^x509\.HostnameError: .*not 127\.0\.0\.1",
        # The client knows no refusal in the exchange of OAUTHBEARER.
        "expired token": "unexpected data in oauth response",
    },
}
"""Each client's error: the class, the text, and the log where the error lacks the text."""
MISSING: Final = {
    ("kcat", "SCRAM-SHA-256"): (
        "Debian's kcat has librdkafka 2.0.2. Before 2.6.1 librdkafka sends its nonce twice, which"
        " RFC 5802 forbids. Kafka 4.1 refuses it too (CVE-2024-56128)."
    ),
    ("kcat", "SCRAM-SHA-512"): "The same.",
    ("kcat", "OAUTHBEARER"): (
        "Debian's librdkafka has no OIDC, and kcat no option for a token: it makes unsigned ones."
    ),
}
"""The combinations that a client lacks, and why."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedBroker]:
    """One broker process with all listeners."""
    with closed_broker(tmp_path_factory.mktemp("closed")) as found:
        yield found


@pytest.fixture
def client(request: pytest.FixtureRequest, require_tool: RequireTool) -> SecuredClient:
    """The client named by the test's parameter."""

    def java() -> SecuredClient:
        return java_client(request.getfixturevalue("kafka_lib"))

    def kafkajs() -> SecuredClient:
        return kafkajs_client(request.getfixturevalue("npm_modules"))

    def franz_go() -> SecuredClient:
        return franz_go_client(require_tool("go"), Path(CACHE))

    def kcat() -> SecuredClient:
        require_tool("kcat")
        return KcatClient()

    makers: dict[str, Callable[[], SecuredClient]] = {
        "confluent-kafka": ConfluentClient,
        "aiokafka": AioKafkaClient,
        "kafka-python": KafkaPythonClient,
        "kcat": kcat,
        "Java": java,
        "KafkaJS": kafkajs,
        "franz-go": franz_go,
    }
    return makers[request.param]()


@pytest.mark.parametrize("client", ERRORS, indirect=True)
def test_a_client_works_by_every_mechanism_and_names_each_fault(
    broker: ClosedBroker, client: SecuredClient
) -> None:
    broker.create_topic(client.name)
    attempts = broker.attempts(client.name, client.mechanisms)
    outcomes = client.run(attempts)
    expected = dict(ERRORS[client.name])
    for mechanism in client.mechanisms & WRONG_PASSWORD.keys():
        words = f"{PASSWORD_CLASS[client.name]}.*{re.escape(WRONG_PASSWORD[mechanism])}"
        if client.name == "kafka-python":
            words = rf"{words}|^KafkaTimeoutError: (.|\n)*{LOST}"
        expected[f"wrong password by {mechanism}"] = words
    for attempt, outcome in zip(attempts, outcomes, strict=True):
        # pytest would cut it if it were no text.
        told = f"{attempt.name}: {outcome}"
        if attempt.is_refused:
            assert re.search(expected.pop(attempt.name), outcome.error), told
        else:
            assert sorted(outcome.consumed) == sorted(attempt.values), told
    assert not expected, "an error that was not tried"
    lacks = {mechanism for name, mechanism in MISSING if name == client.name}
    assert client.mechanisms == set(MECHANISMS) - lacks


def test_an_old_librdkafka_that_breaks_scram_is_refused_as_by_kafka(
    broker: ClosedBroker, require_tool: RequireTool
) -> None:
    require_tool("kcat")
    scram = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
    for attempt in broker.attempts("kcat", scram):
        if attempt.mechanism in scram and not attempt.is_refused:
            error = KcatClient().connect(attempt).error
            assert WRONG_PASSWORD[attempt.mechanism] in error
