"""Groups of principals, from tokens and from certificates, and the rules about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.authentication.certificates import Authority
from tests.unit.broker.authentication.issuer import Issuer
from tests.unit.broker.authentication.test_kafka_clients_by_sasl import secured
from tests.unit.broker.authentication.test_oauthbearer import properties, terms_of
from tests.unit.broker.authentication.test_tls import asked, connect, tls_server
from tests.unit.broker.loopback import run as run_loop
from tests.unit.broker.one_broker import TOPIC, run
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.client.pool import Client
from tidelog.client.security import security_of
from tidelog.client.settings import ClientSettings
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.acl_rules import AclRule
from tidelog.coordinator.cluster.records.records import AclsChanged
from tidelog.errors import InvalidConfiguration
from tidelog.network import SocketNetwork
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
)
from tidelog.security.acl_codes import AclOperation, PatternType, PermissionType, ResourceType

OU = "ssl.principal.groups.attribute"


async def told_groups(_b: object, _r: object, context: RequestContext) -> Response:
    return DescribeClusterResponse(cluster_id=",".join(context.principal.groups))


@pytest.mark.parametrize(
    ("attribute", "groups"),
    [("OU", "ops,night"), ("ou", "ops,night"), ("2.5.4.11", "ops,night"), ("C", "PT"), ("DC", "")],
)
def test_a_certificate_names_groups_by_an_attribute(
    tmp_path: Path, attribute: str, groups: str
) -> None:
    authority = Authority.create(tmp_path)

    async def story() -> None:
        handlers = {ApiKey.DESCRIBE_CLUSTER: told_groups}
        how = {"ssl_client_auth": "required", OU.replace(".", "_"): attribute}
        async with tls_server(authority, handlers, **how) as broker:
            certificate = authority.issue("alice", units=("night", "ops"))
            client = await connect(broker, authority.client(certificate))
            assert await asked(client) == groups

    run_loop(story())


def test_without_the_setting_a_certificate_names_no_groups(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path)

    async def story() -> None:
        handlers = {ApiKey.DESCRIBE_CLUSTER: told_groups}
        async with tls_server(authority, handlers, ssl_client_auth="required") as broker:
            client = await connect(broker, authority.client(authority.issue("alice")))
            assert await asked(client) == ""

    run_loop(story())


def test_an_attribute_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=f"{OU} = 'Team' .argument.: must be unset"):
        BrokerSettings.of(ssl_principal_groups_attribute="Team")


def rule(principal: str, permission: PermissionType) -> AclRule:
    return AclRule(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        TOPIC,
        principal,
        "*",
        AclOperation.DESCRIBE,
        permission,
    )


ALLOWED = rule("Group:ops", PermissionType.ALLOW)
DENIED = rule("Group:guests", PermissionType.DENY)


async def described(address: str, token: str) -> ErrorCode:
    """The answer about the topic to a client with this token."""
    host, _, port = address.rpartition(":")
    security = security_of(properties(sasl_oauthbearer_token=token))
    settings = ClientSettings(security=security)
    async with Client(SocketNetwork(), SystemClock(), [(host, int(port))], settings) as client:
        asked_for = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        answer = await client.request_any(asked_for)
        return ErrorCode(answer.topics[0].error_code)


def test_rules_about_groups_allow_and_deny_the_holders_of_tokens(tmp_path: Path) -> None:
    issuer = Issuer()
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED

    async def story() -> None:
        terms = terms_of(issuer.publish(tmp_path / "jwks"))
        async with secured(authorizer_class_name="acl", super_users="Group:root", **terms) as (
            one,
            _,
            address,
        ):
            membership = one.broker.membership
            change = AclsChanged((ALLOWED, DENIED))
            await membership.metadata.append(membership.incarnation.epoch, lambda _: (change,))
            told = [
                await described(address, issuer.token("alice", groups=groups))
                for groups in (None, ["ops"], ["a", "ops"], ["ops", "guests"], "ops", ["root"])
            ]
            none = ErrorCode.NONE
            assert told == [refused, none, none, refused, none, none]
            # The name of a user is no name of a group.
            assert await described(address, issuer.token("ops")) == refused

    run(story)


def test_rules_follow_the_groups_of_the_renewed_token(tmp_path: Path) -> None:
    issuer = Issuer()

    async def story() -> None:
        terms = terms_of(issuer.publish(tmp_path / "jwks"), connections_max_reauth_ms=500)
        async with secured(authorizer_class_name="acl", **terms) as (one, _, address):
            membership = one.broker.membership
            change = AclsChanged((ALLOWED,))
            await membership.metadata.append(membership.incarnation.epoch, lambda _: (change,))
            path = tmp_path / "token"
            path.write_text(issuer.token(groups=["ops"]))
            url = f"file://{path}"
            security = security_of(properties(sasl_oauthbearer_token_endpoint_url=url))
            host, _, port = address.rpartition(":")
            settings = ClientSettings(security=security)
            async with Client(
                SocketNetwork(), SystemClock(), [(host, int(port))], settings
            ) as client:
                connection = await client.any_connection()
                wanted = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
                answer = await connection.request(wanted)
                assert answer.topics[0].error_code == ErrorCode.NONE
                path.write_text(issuer.token(groups=["others"]))
                while answer.topics[0].error_code == ErrorCode.NONE:
                    answer = await connection.request(wanted)
                assert connection.is_open

    run(story)
