"""Tidelog and Apache Kafka with authorizers, and an issuer of tokens that both trust."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from tests.compat.security.raw_client import MECHANISM, RawClient
from tests.unit.broker.authentication.issuer import AUDIENCE, ISSUER, Issuer
from tests.unit.broker.guarded import codes
from tidelog.coordinator.cluster.records.acl_rules import AclRule
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.kafka import ApacheKafka
from tidelog.localstack.ports import free_ports
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request
from tidelog.protocol.schemas.cluster import metadata, topics
from tidelog.protocol.schemas.security import acls

ADMIN = "admin"
TOKEN_SECONDS = 3000
RULES_OF_REQUEST_MAX = 500
NOT_YET: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
"""Errors after which clients retry."""
_LOGIN = "org.apache.kafka.common.security.oauthbearer"
_SHARED: Final = {
    "sasl.oauthbearer.expected.issuer": ISSUER,
    "sasl.oauthbearer.expected.audience": AUDIENCE,
    "offsets.topic.num.partitions": "1",
    # The records have old timestamps, and must not expire.
    "log.retention.ms": "-1",
    "transaction.state.log.num.partitions": "1",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{ADMIN};User:ANONYMOUS",
}
_PROTOCOLS = "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT"


@dataclass(frozen=True)
class Judge:
    """A broker of the comparison, at its closed listener."""

    name: str
    address: str
    issuer: Issuer

    @asynccontextmanager
    async def client(self, principal: str) -> AsyncIterator[RawClient]:
        """A connection of a user of this name."""
        token = self.issuer.token(principal, seconds=TOKEN_SECONDS)
        client = await RawClient.connect(self.address, token)
        try:
            yield client
        finally:
            await client.close()

    async def ask_until_served(self, request: Request[Any], version: int) -> Any:
        """The administrator's first answer without a passing error."""
        async with self.client(ADMIN) as client:
            while True:
                answer = await client.ask(request, version)
                if not codes(answer) & NOT_YET:
                    return answer

    async def create_topic(self, name: str) -> UUID:
        """Create a topic of one partition, and wait for its leader. Returns the topic's id."""
        new = topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        await self.ask_until_served(topics.CreateTopicsRequest(topics=[new], timeout_ms=30_000), 7)
        named = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=name)])
        while True:
            answer = await self.ask_until_served(named, 12)
            if not codes(answer):
                found: UUID = answer.topics[0].topic_id
                return found

    async def create_rules(self, rules: Sequence[AclRule]) -> list[int]:
        """Create rules, and wait until they hold. Returns the error code of each."""
        results = []
        for first in range(0, len(rules), RULES_OF_REQUEST_MAX):
            batch = rules[first : first + RULES_OF_REQUEST_MAX]
            creations = [
                acls.AclCreation(
                    resource_type=each.resource_type,
                    resource_name=each.name,
                    resource_pattern_type=each.pattern,
                    principal=each.principal,
                    host=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in batch
            ]
            answer = await self.ask_until_served(acls.CreateAclsRequest(creations=creations), 3)
            results += [each.error_code for each in answer.results]
        # Kafka's broker learns of rules after the answer.
        taken = [rule for rule, code in zip(rules, results, strict=True) if not code]
        while not await self._has_rules(taken[-1].principal):
            pass
        return results

    async def _has_rules(self, principal: str) -> bool:
        asked = acls.DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=principal,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        return bool((await self.ask_until_served(asked, 3)).resources)


@contextmanager
def two_brokers(folder: Path, cache: Path) -> Iterator[tuple[Judge, Judge]]:
    """Tidelog and Kafka, each with a listener for bearers of the issuer's tokens."""
    issuer = Issuer()
    keys = issuer.publish(folder / "keys.json")
    kafka_port, port = free_ports(2)
    addresses = f"PLAINTEXT://127.0.0.1:{{port}},CLIENTS://127.0.0.1:{kafka_port}"
    kafka_settings = {
        "listeners": addresses + ",CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": addresses,
        "listener.security.protocol.map": f"{_PROTOCOLS},CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": MECHANISM,
        "listener.name.clients.oauthbearer.sasl.jaas.config": (
            f"{_LOGIN}.OAuthBearerLoginModule required;"
        ),
        "listener.name.clients.oauthbearer.sasl.server.callback.handler.class": (
            f"{_LOGIN}.OAuthBearerValidatorCallbackHandler"
        ),
        "listener.name.clients.sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        **_SHARED,
    }
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}"
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:{port}",
        "listener.security.protocol.map": _PROTOCOLS,
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        **_SHARED,
    }
    (folder / "bucket").mkdir()
    with (
        ApacheKafka.start(
            folder / "kafka",
            cache,
            settings=kafka_settings,
            options=[allowed],
        ),
        BrokerProcess.start(
            f"file://{folder / 'bucket'}", folder / "broker.log", listen=None, settings=settings
        ),
    ):
        yield (
            Judge("Tidelog", f"127.0.0.1:{port}", issuer),
            Judge("Kafka", f"127.0.0.1:{kafka_port}", issuer),
        )
