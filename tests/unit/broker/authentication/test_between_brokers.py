"""Brokers reach each other by protected listeners, and need CLUSTER_ACTION there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.kept_secrets import keep, keep_verifier
from tests.unit.broker.authentication.certificates import Authority
from tests.unit.broker.authentication.issuer import Issuer
from tests.unit.broker.one_broker import PATIENT, TOPIC, OneBroker, World, batch, run
from tests.unit.broker.ownership.test_several_brokers import (
    epoch_of,
    reassign,
    until_served,
    values,
)
from tests.unit.broker.peers.several import OK, RoutedClient, divided, refreshed
from tests.unit.broker.transactional_client import read
from tidelog.broker.authentication.inter_broker import inter_broker_security
from tidelog.broker.settings.listeners import ListenerConfig
from tidelog.broker.settings.loading import load_settings
from tidelog.broker.settings.settings import BROKER_TABLE, BrokerSettings
from tidelog.cli.scram_options import NewCredential, new_salt
from tidelog.client import transport
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.credential_files import change_credentials
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.credentials import UserKey
from tidelog.entropy import SeededEntropy
from tidelog.errors import InvalidConfiguration
from tidelog.security.scram import ScramMechanism, Verifier
from tidelog.security.security_protocol import SecurityProtocol
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.memory import MemoryStore

MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
BROKER, PASSWORD = "broker", keep('a "secret"', "the password of the brokers")
OTHER_PASSWORD = keep("another secret", "the other password of the brokers")
MECHANISM_SETTING = "sasl.mechanism.inter.broker.protocol"
LOGIN_SETTING = "listener.name.brokers.scram-sha-512.sasl.jaas.config"
BETWEEN = ListenerConfig("BROKERS", SecurityProtocol.SASL_PLAINTEXT, None, None)


def login(mechanism: str, password: str = PASSWORD, username: str = BROKER) -> dict[str, object]:
    quoted = password.replace('"', '\\"')
    return {
        "sasl_mechanism_inter_broker_protocol": mechanism,
        f"listener.name.brokers.{mechanism.lower()}.sasl.jaas.config": (
            f'{MODULES[mechanism]} required username="{username}" password="{quoted}";'
        ),
    }


def by_token(folder: Path) -> dict[str, object]:
    issuer = Issuer()
    token = folder / "token"
    token.write_text(issuer.token(BROKER))
    return {
        "sasl_mechanism_inter_broker_protocol": "OAUTHBEARER",
        "sasl_oauthbearer_jwks_endpoint_url": issuer.publish(folder / "jwks"),
        "sasl_oauthbearer_token_endpoint_url": f"file://{token}",
    }


def protected(
    folder: Path, protocol: str, mechanism: str = "", **settings: object
) -> dict[str, object]:
    """The settings of a broker that has only the listener between brokers, and an authorizer."""
    found: dict[str, object] = PATIENT | {
        "wal_linger_ms": 0,
        "broker_heartbeat_interval_ms": 60_000,
        "listeners": "BROKERS://127.0.0.1:0",
        "listener_security_protocol_map": f"BROKERS:{protocol}",
        "inter_broker_listener_name": "BROKERS",
        "authorizer_class_name": "acl",
        "super_users": f"User:{BROKER}",
    }
    if mechanism:
        found |= {
            "sasl_enabled_mechanisms": mechanism,
            "connection_failed_authentication_delay_ms": 0,
            **(by_token(folder) if mechanism == "OAUTHBEARER" else login(mechanism)),
        }
    if protocol.endswith("SSL"):
        authority = Authority.create(folder)
        found |= {
            "ssl_keystore_location": str(authority.issue(BROKER)),
            "ssl_truststore_location": str(authority.trusted),
            "ssl_principal_mapping_rules": "RULE:^CN=(.*?),.*$/$1/",
            "ssl_client_auth": "none" if mechanism else "required",
        }
    return found | settings


async def with_user(store: ObjectStore) -> World:
    """A cluster that has the brokers' user, as `tidelog bucket create --add-scram` makes it."""
    clock, entropy = SystemClock(), SeededEntropy(7)
    log = await MetadataLog.open(store, clock, entropy, create=True)
    mechanism = ScramMechanism.SCRAM_SHA_512
    verifier = keep_verifier(
        NewCredential(BROKER, mechanism, PASSWORD).verifier(new_salt()), BROKER
    )
    added = {(BROKER, mechanism): verifier}
    await change_credentials(log, store, clock, entropy, None, lambda now: now.changed((), added))
    await log.close()
    return World(store)


async def until_it_watches(one: OneBroker, other: OneBroker) -> None:
    """Wait until a broker holds a connection on which another one has named its incarnation."""
    watch = one.broker.ownership.watcher._connections
    while epoch_of(other) not in watch._open:
        await one.broker.environment.clock.sleep(0.001)


async def until_fenced(one: OneBroker, dead: OneBroker) -> None:
    while one.broker.membership.state().is_live(epoch_of(dead)):
        await one.broker.environment.clock.sleep(0.01)
        await one.broker.membership.metadata.refresh()


WAYS = pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
        ("SASL_SSL", "PLAIN"),
        ("SSL", ""),
        ("SASL_PLAINTEXT", "OAUTHBEARER"),
    ],
    ids=["SCRAM", "PLAIN over TLS", "mTLS", "OAUTHBEARER"],
)


@WAYS
def test_moves_transactions_and_fences_work_over_protected_connections(
    tmp_path: Path, protocol: str, mechanism: str
) -> None:
    """The killed broker's lease is valid for minutes, so only a broken connection fences the
    broker."""

    async def story() -> None:
        world = await with_user(MemoryStore(SystemClock()))
        world.settings = BrokerSettings.of(**protected(tmp_path, protocol, mechanism))
        async with (
            divided(world, 0, 1, coordinator=1, groups=0) as (first, second),
            world.broker(2, politely=False) as third,
        ):
            producer = RoutedClient(second, [first, second], first)
            assert await producer.init() is OK
            for number in range(2):
                assert await producer.send(b"%d" % number, number) is OK
            assert await producer.end(commit=True) is OK
            for number, leader in enumerate((first, second)):
                while not await read(leader, number):
                    await leader.broker.environment.clock.sleep(0.001)
                assert await read(leader, number) == [b"%d" % number]

            # The second broker passes the request on to the owner, which is the first.
            assert await reassign(second, 0, 2) == (OK, None)
            topic = third.broker.membership.state().topic_named(TOPIC)
            assert topic is not None
            await until_served(third, topic.topic_id, 0)
            assert await values(third, 0) == [b"0"]

            for one in (first, second):
                await until_it_watches(one, third)
                await until_it_watches(one, second if one is first else first)
            third.run.cancel()
            await asyncio.gather(third.run, return_exceptions=True)
            await until_fenced(first, third)

    run(story)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"super_users": "User:other"}, "Cluster authorization failed"),
        (login("SCRAM-SHA-512", "wrong"), "SASL_AUTHENTICATION_FAILED"),
    ],
    ids=["no CLUSTER_ACTION", "a wrong password"],
)
def test_a_broker_without_permission_or_password_is_refused_by_other_brokers(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    async def story() -> None:
        world = await with_user(MemoryStore(SystemClock()))
        # A broker that ends would otherwise keep trying to give its partitions away.
        more = change | {"controlled_shutdown_enable": False}
        settings = protected(tmp_path, "SASL_PLAINTEXT", "SCRAM-SHA-512", **more)
        world.settings = BrokerSettings.of(**settings)
        async with divided(world, 0, 1) as (first, second):
            code, told = await reassign(second, 0, 1)
            assert code != OK
            assert why in str(told)
            assert "wrong" not in str(told)
            assert await values(first, 0) == []
            assert first.broker.membership.state().owned_by(epoch_of(first))

    run(story)


def test_a_new_login_is_rolled_out_broker_by_broker(tmp_path: Path) -> None:
    """Brokers with the old and with the new login reach each other. In the end the old user is
    deleted."""
    mechanism, successor = ScramMechanism.SCRAM_SHA_512, "broker 2"
    old = protected(
        tmp_path,
        "SASL_PLAINTEXT",
        mechanism.title,
        super_users=f"User:{BROKER};User:{successor}",
    )
    new = old | login(mechanism.title, OTHER_PASSWORD, successor)

    async def story() -> None:
        world = await with_user(MemoryStore(SystemClock()))
        async with AsyncExitStack() as all_brokers:

            async def start(number: int, settings: dict[str, object]) -> tuple[OneBroker, Stop]:
                world.settings = BrokerSettings.of(**settings)
                one = AsyncExitStack()
                all_brokers.push_async_exit(one)
                return await one.enter_async_context(world.broker(number)), one.aclose

            async def move(asked: OneBroker, to: OneBroker) -> None:
                """A broker that does not own the partition passes the request to its owner."""
                number = int(to.broker.membership.incarnation.broker_id)
                assert await reassign(asked, 0, number) == (OK, None)
                await until_served(to, topic_id, 0)

            first, stop_first = await start(0, old)
            second, stop_second = await start(1, old)
            await refreshed(first)
            topic_id = await first.create_topic()
            await first.produce(batch(b"kept"))
            await move(second, second)
            await move(first, first)
            added = NewCredential(successor, mechanism, OTHER_PASSWORD).verifier(new_salt())
            await alter(world, first, added={(successor, mechanism): added})
            await stop_second()
            second, _ = await start(1, new)
            await refreshed(first)
            await move(second, second)
            await move(first, first)
            await move(second, second)
            await stop_first()
            first, _ = await start(0, new)
            await refreshed(second)
            await alter(world, first, deleted=[(BROKER, mechanism)])
            third, _ = await start(2, new)
            await refreshed(first, second)
            await move(third, third)
            await move(first, first)
            assert await values(first, 0) == [b"kept"]

    run(story)


class OwnSecrets(World):
    """Each broker reads its login from a file of its own."""

    def __init__(self, store: ObjectStore, folder: Path, given: dict[str, object]) -> None:
        super().__init__(store)
        self._folder = folder
        self._given = given

    def write(self, number: int, of: dict[str, object]) -> None:
        """Replace a broker's file."""
        changed = self._folder / "changed"
        changed.write_text(f"login = {of[LOGIN_SETTING]}\n")
        changed.replace(self._file(number))

    @asynccontextmanager
    async def broker(
        self, broker_id: int | None = None, *, politely: bool = True
    ) -> AsyncIterator[OneBroker]:
        assert broker_id is not None
        self.write(broker_id, self._given)
        given = self._given | {LOGIN_SETTING: f"${{file:{self._file(broker_id)}:login}}"}
        names = {name.replace(".", "_"): name for name in BROKER_TABLE}
        flags = [
            f"{names.get(name, name)}={str(value).lower() if value in (True, False) else value}"
            for name, value in given.items()
        ]
        self.settings = load_settings(environment={}, flags=flags)
        async with super().broker(broker_id, politely=politely) as one:
            yield one

    def _file(self, number: int) -> Path:
        return self._folder / f"secrets of {number}"


async def until_all_are(one: OneBroker, username: str) -> None:
    """Wait until all connections of other brokers have this login."""
    sessions = one.broker.services.sessions._sessions
    while not sessions or any(
        session._established.principal.name != username for session in sessions.values()
    ):
        await one.broker.environment.clock.sleep(0.001)


def test_a_new_login_is_taken_from_its_file_by_running_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that needs both brokers sees no error, and no request between them fails."""
    mechanism, successor = ScramMechanism.SCRAM_SHA_512, "broker 2"
    old = protected(
        tmp_path,
        "SASL_PLAINTEXT",
        mechanism.title,
        super_users=f"User:{BROKER};User:{successor}",
        # Connections are renewed soon, and expire late.
        connections_max_reauth_ms=600_000,
    )
    monkeypatch.setattr(transport, "RENEWED_AT", 1e-4)
    new = login(mechanism.title, OTHER_PASSWORD, successor)

    async def story() -> None:
        store = (await with_user(MemoryStore(SystemClock()))).store
        world = OwnSecrets(store, tmp_path, old)
        async with divided(world, 0, 1, coordinator=1, groups=0) as brokers:
            first, second = brokers
            producer = RoutedClient(second, brokers, first)
            assert await producer.init() is OK

            async def transact() -> None:
                for number in range(2):
                    assert await producer.send(b"kept", number) is OK
                assert await producer.end(commit=True) is OK

            await transact()
            added = NewCredential(successor, mechanism, OTHER_PASSWORD).verifier(new_salt())
            await alter(world, first, added={(successor, mechanism): added})
            for number, other in ((0, second), (1, first)):
                await until_all_are(other, BROKER)
                world.write(number, new)
                await until_all_are(other, successor)
                await transact()
            await alter(world, first, deleted=[(BROKER, mechanism)])
            await transact()
            assert await reassign(second, 0, 1) == (OK, None)
            for one in brokers:
                peers = one.broker.coordination.admissions._peers
                assert peers.metrics.requests
                assert not peers.metrics.failures

    run(story)


Stop = Callable[[], Awaitable[None]]


async def alter(
    world: World,
    one: OneBroker,
    deleted: Sequence[UserKey] = (),
    added: Mapping[UserKey, Verifier] = MappingProxyType({}),
) -> None:
    """Change the users, as AlterUserScramCredentials at a broker does."""
    log, epoch = one.broker.membership.metadata, epoch_of(one)
    clock, entropy = SystemClock(), SeededEntropy(len(added) + 50)
    await change_credentials(
        log, world.store, clock, entropy, epoch, lambda now: now.changed(deleted, added)
    )


def test_changed_certificates_protect_the_next_connection(tmp_path: Path) -> None:
    settings = BrokerSettings.of(**protected(tmp_path, "SSL"))
    listener = ListenerConfig("BROKERS", SecurityProtocol.SSL, None, None)
    security = inter_broker_security(listener, settings)
    assert security.client is not None
    assert security.client.tls is not None
    assert security.tls is not None
    before = security.client.tls()
    assert not security.tls.reload()
    protected(tmp_path, "SSL")  # another authority, and its certificate
    assert security.tls.reload()
    assert security.client.tls() is not before
    assert security.client.tls().check_hostname


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({MECHANISM_SETTING: None}, f"set {MECHANISM_SETTING} to one of its .*SCRAM-SHA-512"),
        ({MECHANISM_SETTING: "PLAIN"}, f"set {MECHANISM_SETTING} to one of its"),
        ({"login": None}, "set listener.name.brokers.scram-sha-512.sasl.jaas.config to"),
        ({"login": "Module secret"}, "jaas.config = .hidden.: it does not begin with"),
    ],
)
def test_an_incomplete_login_is_refused_by_name(
    tmp_path: Path, change: dict[str, str | None], why: str
) -> None:
    settings = protected(tmp_path, "SASL_PLAINTEXT", "SCRAM-SHA-512")
    for name, value in change.items():
        key = LOGIN_SETTING if name == "login" else name.replace(".", "_")
        if value is None:
            del settings[key]
        else:
            settings[key] = value
    with pytest.raises(InvalidConfiguration, match=why) as refused:
        inter_broker_security(BETWEEN, BrokerSettings.of(**settings))
    assert "secret" not in str(refused.value)
