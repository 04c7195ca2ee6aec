"""Kafka's own tools change the rules, users and quotas of a closed cluster as its administrator."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from urllib.request import urlopen

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.chaos_cluster.protection import ADMIN, JOBS, LISTENERS, MECHANISM, STRANGER, Protection
from tests.compat.kit.tools import Tools
from tests.kept_secrets import keep
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.ports import free_ports

pytestmark = pytest.mark.compat

ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPICS = "org.apache.kafka.tools.TopicCommand"
WEAKER = "SCRAM-SHA-256"
SECONDS_MAX = 60
REAUTHENTICATION_MS = 1000
MESSAGES_OF_LOGIN = 2
"""SaslAuthenticate requests of one login by SCRAM."""


class ClosedCluster:
    """A broker with a login by SCRAM over TLS and with rules, and clients of its users."""

    def __init__(self, lib: Path, broker: BrokerProcess, port: int, protection: Protection) -> None:
        self._lib = lib
        self._broker = broker
        self._address = f"127.0.0.1:{port}"
        self._protection = protection

    def tools(self, user: str) -> Tools:
        """Kafka's tools with this user's `--command-config`."""
        config = self._protection.files(user)["JAVA_CLIENT_PROPERTIES"]
        return Tools(self._lib, self._address, config)

    def consumed(self, user: str, topic: str, count: int) -> str:
        """The first records as Kafka's console consumer prints them. Waits for the records."""
        config = self._protection.files(user)["JAVA_CLIENT_PROPERTIES"]
        place = ("--topic", topic, "--partition", "0", "--offset", "earliest")
        limits = ("--max-messages", str(count), "--timeout-ms", str(1000 * SECONDS_MAX))
        tools = Tools(self._lib, self._address)
        return tools.run(CONSUMER, *place, *limits, "--consumer.config", config)

    def metrics(self) -> dict[str, float]:
        """The broker's metrics, by name and labels."""
        with urlopen(f"http://{self._broker.http}/metrics", timeout=SECONDS_MAX) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")
        return {name: float(value) for name, value in pairs}

    def produced(self, topic: str, user: str = JOBS, value: bytes = b"x") -> str:
        """Send a record as a user. Returns the name of the delivery's error, or an empty text."""
        errors: list[KafkaError | None] = []
        producer = Producer(self._connection(user) | {"message.timeout.ms": 1000 * SECONDS_MAX})
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
        producer.flush(SECONDS_MAX)
        (error,) = errors
        return "" if error is None else str(error.name())

    def logged_in(self, user: str, password: str, mechanism: str) -> bool:
        """Whether a client can log in."""
        heard: list[KafkaError] = []
        login = {"sasl.username": user, "sasl.password": password, "sasl.mechanism": mechanism}
        client = Producer(self._connection(JOBS) | login | {"error_cb": heard.append})
        for _ in range(SECONDS_MAX):
            try:
                client.list_topics(timeout=1)
            except KafkaException:
                client.poll(0)
                if "_AUTHENTICATION" in {each.name() for each in heard}:
                    return False
            else:
                return True
        raise AssertionError(f"no answer to {user}: {heard}")

    def _connection(self, user: str) -> dict[str, object]:
        client = self._protection.client(user)
        return {"bootstrap.servers": self._address, "log_level": 0, **client}


@pytest.fixture(scope="module")
def cluster(kafka_lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedCluster]:
    folder = tmp_path_factory.mktemp("closed")
    protection = Protection(folder / "protection")
    store = f"file://{folder / 'bucket'}"
    protection.create_cluster(store)
    ports = free_ports(len(LISTENERS))
    settings = protection.settings(ports, ports)
    settings["sasl.enabled.mechanisms"] = f"{WEAKER},{MECHANISM}"
    settings["connections.max.reauth.ms"] = REAUTHENTICATION_MS
    log, http = folder / "broker.log", "127.0.0.1:0"
    with BrokerProcess.start(store, log, listen=None, http=http, settings=settings) as broker:
        yield ClosedCluster(kafka_lib, broker, ports[0], protection)
        assert broker.stop() == 0


@pytest.fixture(scope="module")
def admin(cluster: ClosedCluster) -> Tools:
    return cluster.tools(ADMIN)


def test_literal_and_prefixed_rules_are_added_listed_and_removed(
    cluster: ClosedCluster, admin: Tools
) -> None:
    for topic in ("orders", "orders-eu"):
        admin.run(TOPICS, "--create", "--topic", topic, "--partitions", "1")
    refused = "TOPIC_AUTHORIZATION_FAILED"
    assert [cluster.produced(each) for each in ("orders", "orders-eu")] == [refused, refused]

    writer = ("--allow-principal", f"User:{JOBS}", "--operation", "Write")
    admin.run(ACLS, "--add", *writer, "--topic", "orders")
    assert [cluster.produced(each) for each in ("orders", "orders-eu")] == ["", refused]
    prefixed = ("--topic", "orders-", "--resource-pattern-type", "prefixed")
    admin.run(ACLS, "--add", *writer, *prefixed)
    assert [cluster.produced(each) for each in ("orders", "orders-eu")] == ["", ""]
    denied = ("--deny-principal", f"User:{JOBS}", "--deny-host", "127.0.0.1")
    admin.run(ACLS, "--add", *denied, "--operation", "All", "--topic", "orders")
    assert [cluster.produced(each) for each in ("orders", "orders-eu")] == [refused, ""]

    write = f"(principal=User:{JOBS}, host=*, operation=WRITE, permissionType=ALLOW)"
    deny = f"(principal=User:{JOBS}, host=127.0.0.1, operation=ALL, permissionType=DENY)"
    literal = admin.run(ACLS, "--list", "--topic", "orders")
    assert "name=orders, patternType=LITERAL" in literal
    assert (write in literal, deny in literal, "PREFIXED" in literal) == (True, True, False)
    matching = ("--topic", "orders-eu", "--resource-pattern-type", "match")
    found = admin.run(ACLS, "--list", *matching)
    assert "name=orders-, patternType=PREFIXED" in found
    assert (write in found, "name=orders," in found) == (True, False)
    assert "orders" not in admin.run(ACLS, "--list", "--principal", "User:other")

    admin.run(ACLS, "--remove", "--force", *denied, "--operation", "All", "--topic", "orders")
    assert [cluster.produced(each) for each in ("orders", "orders-eu")] == ["", ""]
    admin.run(ACLS, "--remove", "--force", *prefixed)
    assert [cluster.produced(each) for each in ("orders", "orders-eu")] == ["", refused]
    admin.run(ACLS, "--remove", "--force", *writer, "--topic", "orders")
    assert [cluster.produced(each) for each in ("orders", "orders-eu")] == [refused, refused]
    assert "orders" not in admin.run(ACLS, "--list")


def test_the_producers_and_consumers_rules_are_those_of_kafkas_tool(admin: Tools) -> None:
    user = ("--allow-principal", "User:pipeline")
    admin.run(ACLS, "--add", *user, "--producer", "--topic", "in", "--transactional-id", "pipe")
    admin.run(ACLS, "--add", *user, "--consumer", "--topic", "out", "--group", "pipe")
    found = admin.run(ACLS, "--list", "--principal", "User:pipeline")
    for kind, name in [
        ("TOPIC", "in"),
        ("TRANSACTIONAL_ID", "pipe"),
        ("TOPIC", "out"),
        ("GROUP", "pipe"),
    ]:
        assert f"resourceType={kind}, name={name}, patternType=LITERAL" in found


def test_a_user_that_kafkas_tool_adds_logs_in_until_it_is_deleted(
    cluster: ClosedCluster, admin: Tools
) -> None:
    # Kafka's tool takes the password from its arguments, so it is no secret.
    user, password = "carol", "in-the-arguments"
    entity = ("--entity-type", "users", "--entity-name", user)
    assert not cluster.logged_in(user, password, WEAKER)
    admin.run(CONFIGS, "--alter", *entity, "--add-config", f"{WEAKER}=[password={password}]")
    described = admin.run(CONFIGS, "--describe", *entity)
    assert f"SCRAM credential configs for user-principal '{user}' are {WEAKER}=iterations=" in (
        described
    )
    assert MECHANISM not in described
    assert cluster.logged_in(user, password, WEAKER)
    assert not cluster.logged_in(user, "another-password", WEAKER)
    assert not cluster.logged_in(user, password, MECHANISM)

    admin.run(CONFIGS, "--alter", *entity, "--delete-config", WEAKER)
    assert "SCRAM" not in admin.run(CONFIGS, "--describe", *entity)
    assert not cluster.logged_in(user, password, WEAKER)


def test_kafkas_tool_takes_a_password_from_a_file(
    cluster: ClosedCluster, admin: Tools, tmp_path: Path
) -> None:
    user, password = "dave", keep("out-of-the-arguments", "the password of dave")
    entity = ("--entity-type", "users", "--entity-name", user)
    file = tmp_path / "added.properties"
    file.write_text(f"{MECHANISM}=iterations=8192,password={password}\n")
    admin.run(CONFIGS, "--alter", *entity, "--add-config-file", str(file))
    assert f"{MECHANISM}=iterations=8192" in admin.run(CONFIGS, "--describe", *entity)
    assert cluster.logged_in(user, password, MECHANISM)


def test_quotas_of_users_clients_and_addresses_are_set_described_and_deleted(admin: Tools) -> None:
    both = ("--entity-type", "users", "--entity-name", JOBS, "--entity-type", "clients")
    entities = {
        ("--entity-type", "users", "--entity-default"): "consumer_byte_rate=100000",
        (*both, "--entity-name", "loader"): "producer_byte_rate=200000",
        (*both, "--entity-default"): "request_percentage=50",
        ("--entity-type", "ips", "--entity-name", "127.0.0.9"): "connection_creation_rate=10",
    }
    for entity, quota in entities.items():
        admin.run(CONFIGS, "--alter", *entity, "--add-config", quota)
    for entity, quota in entities.items():
        described = admin.run(CONFIGS, "--describe", *entity)
        assert quota in described
        assert not [other for other in entities.values() if other != quota and other in described]
    for entity, quota in entities.items():
        admin.run(CONFIGS, "--alter", *entity, "--delete-config", quota.partition("=")[0])
        assert quota not in admin.run(CONFIGS, "--describe", *entity)


def test_a_user_without_rules_can_neither_change_nor_see_rules_and_quotas(
    cluster: ClosedCluster,
) -> None:
    stranger = cluster.tools(STRANGER)
    mine = ("--allow-principal", f"User:{STRANGER}", "--operation", "All", "--topic", "*")
    me = ("--entity-type", "users", "--entity-name", STRANGER)
    refusal = "ClusterAuthorizationException"
    for tool, *arguments in [
        (ACLS, "--add", *mine),
        (ACLS, "--list"),
        (CONFIGS, "--alter", *me, "--add-config", f"{WEAKER}=[password=another-password]"),
        (CONFIGS, "--alter", *me, "--add-config", "producer_byte_rate=1"),
        (CONFIGS, "--describe", *me),
    ]:
        assert refusal in stranger.run(tool, *arguments, fails=True), arguments


def test_the_java_client_renews_its_authentication_and_keeps_its_connections(
    cluster: ClosedCluster, admin: Tools
) -> None:
    """Wait for the consumer's record for longer than its authentication is valid (KIP-368)."""
    admin.run(TOPICS, "--create", "--topic", "renewed", "--partitions", "1")
    connections = "tidelog_connections_accepted_total"
    logins = 'tidelog_requests_total{api="SaslAuthenticate"}'
    expired = 'tidelog_connections_closed_total{reason="session_expired"}'
    before = cluster.metrics()
    pause = Event()
    with ThreadPoolExecutor(1) as threads:
        consumer = threads.submit(cluster.consumed, ADMIN, "renewed", 1)
        renewals = 0.0
        while renewals < 5:
            assert not consumer.done(), consumer.result()
            pause.wait(0.2)
            now = cluster.metrics()
            connected, told = (now[each] - before[each] for each in (connections, logins))
            renewals = told / MESSAGES_OF_LOGIN - connected
        assert cluster.produced("renewed", ADMIN, b"the last word") == ""
        assert "the last word" in consumer.result()
    assert cluster.metrics().get(expired, 0) == before.get(expired, 0)
