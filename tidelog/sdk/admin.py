"""An administrator: topics, settings, groups, transactions, quotas, users and rules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from tidelog.addresses import parse_address
from tidelog.client.admin.acls import AclSelection, create_acls, delete_acls, describe_acls
from tidelog.client.admin.quotas import LimitedClient, alter_quotas, describe_quotas
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.groups.admin import Place, commit_offsets
from tidelog.client.patience import ClientRetrySettings, Patience
from tidelog.client.pool import Client
from tidelog.client.security import security_of
from tidelog.client.settings import ClientSettings
from tidelog.client.transactions.admin import describe_transaction, list_transactions
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.errors import InvalidConfiguration, Refused
from tidelog.network import SocketNetwork
from tidelog.protocol.error_codes import error_name
from tidelog.sdk.access_rules import AccessRule, access_rule
from tidelog.sdk.connecting import (
    FORKED,
    STEP_SECONDS,
    completed,
    ends_at_fork,
    made,
    never_freed,
    repeated,
)
from tidelog.sdk.errors import KafkaRequestError, RetriableError, translated
from tidelog.sdk.settings import admin_configuration
from tidelog.security.scram import ITERATIONS_MIN

T = TypeVar("T")
BROKERS_DEFAULT: Final = -1
KAFKA_PORT: Final = 9092
SCRAM_DEFAULT: Final = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group."""

    group: str
    state: str
    """As `STABLE` or `EMPTY`."""
    members: tuple[str, ...]
    """The members' client ids."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The newest transaction of a transactional id."""

    transactional_id: str
    state: str
    """As `Ongoing` or `CompleteCommit`."""
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...]
    """The topics and partitions of a transaction that has not ended."""


_SECURITY: Final = ("security.", "ssl.", "sasl.")
"""How the names of settings of TLS and SASL begin."""


class Admin:
    """`Admin("127.0.0.1:9092")`. Calls wait for the answer, for at most `max.block.ms`."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        """Raises InvalidConfiguration."""
        configuration = admin_configuration(bootstrap, settings)
        self._bootstrap = bootstrap
        self._security = {
            name: _text(value)
            for name, value in configuration.passed.items()
            if name.startswith(_SECURITY)
        }
        self._block_ms_max = configuration.block_ms_max
        self._made = made(AdminClient, configuration.passed)
        self._is_forked = False
        ends_at_fork(self)

    def forked(self) -> None:
        """This process is a child of the administrator's."""
        self._is_forked = True
        never_freed(self._made)

    @property
    def _client(self) -> AdminClient:
        """Raises Refused after a fork: no thread would send a request."""
        if self._is_forked:
            raise Refused(f"the admin {FORKED}")
        return self._made

    def topics(self) -> dict[str, int]:
        """The topics, internal ones left out, and their numbers of partitions."""
        found = self._metadata()
        return {
            name: len(topic.partitions)
            for name, topic in sorted(found.topics.items())
            if not name.startswith("__")
        }

    def create_topic(
        self,
        name: str,
        partitions: int = BROKERS_DEFAULT,
        configs: Mapping[str, object] | None = None,
    ) -> None:
        """Create a topic. KafkaRequestError: TOPIC_ALREADY_EXISTS, INVALID_CONFIG and others."""
        texts = {key.replace("_", "."): _text(value) for key, value in (configs or {}).items()}

        def ask() -> Future[None]:
            topic = NewTopic(name, partitions, BROKERS_DEFAULT, config=texts)
            return self._client.create_topics([topic])[name]

        self._answer(ask, f"create topic {name}")

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        self._answer(lambda: self._client.delete_topics([name])[name], f"delete topic {name}")

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise a topic's number of partitions to `partitions`. Keys may change their partition."""

        def ask() -> Future[None]:
            wanted = NewPartitions(topic, partitions)
            return self._client.create_partitions([wanted])[topic]

        self._answer(ask, f"partitions of topic {topic}")

    def configs(self, topic: str) -> dict[str, str]:
        """A topic's settings, with those that it has not set itself."""

        def ask() -> Future[Any]:
            resource = ConfigResource(ResourceType.TOPIC, topic)
            return self._client.describe_configs([resource])[resource]

        found = self._answer(ask, f"settings of topic {topic}")
        return {name: entry.value for name, entry in sorted(found.items())}

    def set_configs(self, topic: str, configs: Mapping[str, object | None]) -> None:
        """Change some of a topic's settings, by Kafka's names. None: back to the default."""
        entries = [
            ConfigEntry(
                key.replace("_", "."),
                "" if value is None else _text(value),
                incremental_operation=AlterConfigOpType.DELETE
                if value is None
                else AlterConfigOpType.SET,
            )
            for key, value in configs.items()
        ]

        def ask() -> Future[Any]:
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
            return self._client.incremental_alter_configs([resource])[resource]

        self._answer(ask, f"settings of topic {topic}")

    def groups(self) -> list[str]:
        """The names of the consumer groups."""
        found = self._answer(self._client.list_consumer_groups, "groups")
        for error in found.errors:
            raise translated(error, "groups")
        return sorted(each.group_id for each in found.valid)

    def group(self, group: str) -> GroupDescription:
        """A group's state and members."""
        found = self._answer(
            lambda: self._client.describe_consumer_groups([group])[group], f"group {group}"
        )
        members = tuple(sorted(each.client_id for each in found.members))
        return GroupDescription(group, found.state.name, members)

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """The committed offsets of a group, by topic and partition."""

        def ask() -> Future[Any]:
            asked = [ConsumerGroupTopicPartitions(group)]
            return self._client.list_consumer_group_offsets(asked)[group]

        found = self._answer(ask, f"offsets of group {group}")
        for each in found.topic_partitions:
            if each.error is not None:
                raise translated(each.error, f"offset of {each.topic}-{each.partition}")
        return {
            (each.topic, each.partition): each.offset
            for each in found.topic_partitions
            if each.offset >= 0
        }

    def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set committed offsets of a group that has no members."""
        wanted = {Place(*place): offset for place, offset in offsets.items()}
        self._ask_directly(lambda client: commit_offsets(client, group, wanted))

    def delete_group(self, group: str) -> None:
        """Delete a group that has no members, and its offsets."""
        self._answer(
            lambda: self._client.delete_consumer_groups([group])[group], f"delete group {group}"
        )

    def transactions(self) -> dict[str, str]:
        """The transactional ids, and the states of their newest transactions."""

        async def ask(client: Client) -> dict[str, str]:
            found = await list_transactions(client)
            return {each.transactional_id: each.transaction_state for each in found}

        return self._ask_directly(ask)

    def transaction(self, transactional_id: str) -> TransactionDescription:
        """The newest transaction of a transactional id."""

        async def ask(client: Client) -> TransactionDescription:
            found = await describe_transaction(client, transactional_id)
            return TransactionDescription(
                transactional_id,
                found.transaction_state,
                found.producer_id,
                found.producer_epoch,
                found.transaction_timeout_ms,
                tuple((each.topic, n) for each in found.topics for n in each.partitions),
            )

        return self._ask_directly(ask)

    def quotas(
        self, *, user: str | None = None, client_id: str | None = None, ip: str | None = None
    ) -> dict[LimitedClient, dict[str, float]]:
        """The quotas of all clients with these names, by the quotas' names.

        The name `<default>` stands for all that have no quotas of their own.
        """
        chosen = LimitedClient(user, client_id, ip)

        async def ask(client: Client) -> dict[LimitedClient, dict[str, float]]:
            return await describe_quotas(client, chosen)

        return self._ask_directly(ask)

    def set_quotas(
        self,
        quotas: Mapping[str, float | None],
        *,
        user: str | None = None,
        client_id: str | None = None,
        ip: str | None = None,
    ) -> None:
        """Set quotas of a user, a client id, both, or an address. None removes a quota."""
        limited = LimitedClient(user, client_id, ip)

        async def ask(client: Client) -> None:
            await alter_quotas(client, limited, quotas)

        self._ask_directly(ask)

    def users(self) -> dict[str, dict[str, int]]:
        """The users with a password, and the iterations of each of their mechanisms."""

        def ask() -> Any:
            # One future, where no users are named.
            return self._client.describe_user_scram_credentials()

        found: dict[str, Any] = self._answer(ask, "users")
        return {
            name: {
                each.mechanism.name.replace("_", "-"): each.iterations
                for each in found[name].scram_credential_infos
            }
            for name in sorted(found)
        }

    def set_user(
        self,
        user: str,
        password: str,
        mechanism: str = SCRAM_DEFAULT,
        iterations: int = ITERATIONS_MIN,
    ) -> None:
        """Add a user, or replace the password of one."""
        named = _mechanism(mechanism)

        def alteration() -> UserScramCredentialAlteration:
            info = ScramCredentialInfo(named, iterations)
            return UserScramCredentialUpsertion(user, info, password.encode())

        self._alter_user(user, alteration)

    def delete_user(self, user: str, mechanism: str = SCRAM_DEFAULT) -> None:
        """Remove a user's password for a mechanism. KafkaRequestError: RESOURCE_NOT_FOUND."""
        named = _mechanism(mechanism)
        self._alter_user(user, lambda: UserScramCredentialDeletion(user, named))

    def rules(self, *, principal: str | None = None, name: str | None = None) -> list[AccessRule]:
        """The access control rules, of all or of one principal, and of a resource's name."""
        chosen = AclSelection(principal=principal, name=name)

        async def ask(client: Client) -> list[AccessRule]:
            return [access_rule(each) for each in await describe_acls(client, chosen)]

        return self._ask_directly(ask)

    def add_rules(self, rules: Sequence[AccessRule]) -> None:
        """Add access control rules; those that there are stay."""
        acls = [rule.acl() for rule in rules]

        async def ask(client: Client) -> None:
            await create_acls(client, acls)

        self._ask_directly(ask)

    def delete_rules(self, rules: Sequence[AccessRule]) -> None:
        """Delete these rules; those that there are not are passed over."""
        selections = [rule.selection() for rule in rules]

        async def ask(client: Client) -> None:
            for each in selections:
                await delete_acls(client, each)

        self._ask_directly(ask)

    def _alter_user(
        self, user: str, alteration: Callable[[], UserScramCredentialAlteration]
    ) -> None:
        def ask() -> Future[Any]:
            return self._client.alter_user_scram_credentials([alteration()])[user]

        self._answer(ask, f"user {user}")

    def _metadata(self) -> Any:
        def ask(seconds: float) -> Any:
            return self._client.list_topics(timeout=seconds)

        return repeated(ask, "topics", self._block_ms_max)

    def _answer(self, ask: Callable[[], Future[T]], what: str) -> T:
        """A request's answer. The request is sent once: a repeated one could fail on itself.

        Raises InvalidConfiguration if confluent-kafka refuses the request.
        """
        try:
            asked = ask()
        except (TypeError, ValueError) as error:
            raise InvalidConfiguration(f"{what}: {error}") from error
        try:
            return asked.result(self._block_ms_max / 1000)
        except TimeoutError as error:
            raise RetriableError(
                f"{what}: no answer within max.block.ms={self._block_ms_max}; whether it was done"
                " is unknown"
            ) from error
        except confluent_kafka.KafkaException as error:
            raise translated(error, what) from error

    def _ask_directly(self, ask: Callable[[Client], Awaitable[T]]) -> T:
        """The answer to a request through Tidelog's own client, as librdkafka does not know it, or
        does not repeat it while a coordinator loads or moves, or a broker is away.

        The request must be safe to repeat, and is repeated for up to `max.block.ms`. Raises
        KafkaRequestError, InvalidConfiguration for a setting of TLS or SASL that only librdkafka
        knows.
        """
        settings = ClientSettings(client_id="tidelog", security=security_of(self._security))

        async def run() -> T:
            addresses = [_address(each) for each in self._bootstrap.split(",")]
            async with Client(SocketNetwork(), SystemClock(), addresses, settings) as client:
                patience = Patience(
                    SystemClock(), SystemEntropy(), ClientRetrySettings(), self._block_ms_max
                )
                async with asyncio.timeout(max(self._block_ms_max / 1000, STEP_SECONDS)):
                    while True:
                        try:
                            return await patience.answer(lambda: ask(client))
                        except RequestFailed as failure:
                            await patience.wait(failure)

        try:
            return completed(run)
        except TimeoutError as error:
            raise RetriableError(
                f"no answer within max.block.ms={self._block_ms_max}; whether it was done is"
                " unknown"
            ) from error
        except RequestRefused as refusal:
            kind = RetriableError if refusal.retriable else KafkaRequestError
            raise kind(str(refusal), error_name(refusal.code)) from refusal
        except RequestFailed as failure:
            raise RetriableError(str(failure)) from failure


def _address(text: str) -> tuple[str, int]:
    text = text.strip()
    if ":" not in text:
        return text, KAFKA_PORT
    try:
        return parse_address(text)
    except ValueError as error:
        raise InvalidConfiguration(f"bootstrap: {error}") from None


def _mechanism(title: str) -> ScramMechanism:
    found = {each.name.replace("_", "-"): each for each in ScramMechanism if each.value}
    if title not in found:
        raise InvalidConfiguration(f"mechanism {title!r} is none of {', '.join(found)}")
    return found[title]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
