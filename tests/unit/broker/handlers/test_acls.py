"""DescribeAcls, CreateAcls and DeleteAcls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.unit.broker.administered import AdministeredBroker, administer, new_broker
from tests.unit.coordinator.cluster.acls import rule
from tidelog.broker.authorization.authorizer import Authorizer
from tidelog.broker.handlers.cluster import acls as handlers
from tidelog.broker.handlers.cluster.acls import create_acls, delete_acls, describe_acls
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.acl_rules import AclRule
from tidelog.coordinator.cluster.state import acl_changes
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.security.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from tidelog.security.acl_codes import (
    CLUSTER_NAME,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from tidelog.security.principal import Principal
from tidelog.storage.stores.memory import MemoryStore

EVERYTHING = {
    "resource_type_filter": ResourceType.ANY,
    "resource_name_filter": None,
    "pattern_type_filter": PatternType.ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": AclOperation.ANY,
    "permission_type": PermissionType.ANY,
}
READ = rule("READ", "flights")
PREFIXED = rule("WRITE", "fl", prefixed=True, principal="Group:pilots", host="10.0.0.1")
CLUSTER = rule("ALTER", CLUSTER_NAME, of="CLUSTER", deny=True)


def guarded(story: Callable[[AdministeredBroker], Coroutine[Any, Any, None]]) -> None:
    """Run a story with a broker that has an authorizer."""

    async def with_authorizer(broker: AdministeredBroker) -> None:
        broker.authorizer = new_authorizer(broker)
        await story(broker)

    administer(with_authorizer)


def new_authorizer(broker: AdministeredBroker) -> Authorizer:
    return Authorizer(
        lambda: broker.state.acls, frozenset(), allow_without_rules=False, decisions_max=100
    )


def creation(wanted: AclRule, **other: Any) -> AclCreation:
    fields = {
        "resource_type": wanted.resource_type,
        "resource_name": wanted.name,
        "resource_pattern_type": wanted.pattern,
        "principal": wanted.principal,
        "host": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }
    return AclCreation(**{**fields, **other})


async def create(
    broker: AdministeredBroker, *creations: AclCreation, version: int = 3
) -> list[int]:
    answer = await broker.ask(create_acls, CreateAclsRequest(creations=[*creations]), version)
    return [each.error_code for each in answer.results]


async def described(broker: AdministeredBroker, version: int = 3, **chosen: Any) -> list[AclRule]:
    answer = await ask_for(broker, version, **chosen)
    assert (answer.error_code, answer.error_message) == (0, None)
    return [
        AclRule(
            ResourceType(resource.resource_type),
            PatternType(resource.pattern_type),
            resource.resource_name,
            each.principal,
            each.host,
            AclOperation(each.operation),
            PermissionType(each.permission_type),
        )
        for resource in answer.resources
        for each in resource.acls
    ]


async def ask_for(
    broker: AdministeredBroker, version: int = 3, **chosen: Any
) -> DescribeAclsResponse:
    request = DescribeAclsRequest(**{**EVERYTHING, **chosen})
    return await broker.ask(describe_acls, request, version)


async def delete(broker: AdministeredBroker, **chosen: Any) -> list[str]:
    """The names of the deleted rules' resources."""
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**{**EVERYTHING, **chosen})])
    (result,) = (await broker.ask(delete_acls, request, 3)).filter_results
    assert (result.error_code, result.error_message) == (0, None)
    assert all(each.error_code == 0 for each in result.matching_acls)
    return [each.resource_name for each in result.matching_acls]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_created_rules_are_described_and_deleted(version: int) -> None:
    async def story(broker: AdministeredBroker) -> None:
        assert await described(broker, version) == []
        wanted = (READ, PREFIXED, CLUSTER)
        assert await create(broker, *map(creation, wanted), version=version) == [0, 0, 0]
        assert await described(broker, version) == [*wanted]
        # A repeated request, after a lost answer, changes nothing.
        sequence = broker.state.sequence
        assert await create(broker, creation(READ)) == [0]
        assert broker.state.sequence == sequence
        topics = {"resource_type_filter": ResourceType.TOPIC}
        match = {**topics, "pattern_type_filter": PatternType.MATCH}
        assert await described(broker, **match, resource_name_filter="flights") == [READ, PREFIXED]
        assert await described(broker, **topics, resource_name_filter="fl") == [PREFIXED]
        assert await described(broker, permission_type=PermissionType.DENY) == [CLUSTER]
        assert await described(broker, principal_filter="Group:pilots") == [PREFIXED]
        assert await delete(broker, **topics) == ["flights", "fl"]
        assert await delete(broker, **topics) == []
        assert await described(broker) == [CLUSTER]

    guarded(story)


def test_changed_rules_hold_for_the_authorizer() -> None:
    async def story(broker: AdministeredBroker) -> None:
        assert broker.authorizer is not None
        question = (Principal("alice"), "h", AclOperation.READ, ResourceType.TOPIC, "flights")
        assert not broker.authorizer.decision(*question).is_allowed
        await create(broker, creation(READ))
        assert broker.authorizer.decision(*question).is_allowed
        await delete(broker)
        assert not broker.authorizer.decision(*question).is_allowed

    guarded(story)


def test_another_broker_learns_of_the_rules() -> None:
    async def main() -> None:
        store = MemoryStore(SystemClock())
        one = await new_broker(store, 1)
        other = await new_broker(store, 2)
        one.authorizer = new_authorizer(one)
        other.authorizer = new_authorizer(other)
        assert await create(one, creation(READ)) == [0]
        assert await described(other) == [READ]
        await one.metadata.close()
        await other.metadata.close()

    asyncio.run(main())


def test_a_bad_rule_gets_its_error_and_the_others_are_created() -> None:
    async def story(broker: AdministeredBroker) -> None:
        bad = [
            creation(READ, resource_name=""),
            creation(READ, resource_type=ResourceType.ANY),
            creation(READ, resource_type=99),
            creation(READ, resource_pattern_type=PatternType.MATCH),
            creation(READ, operation=AclOperation.ANY),
            creation(READ, operation=99),
            creation(READ, permission_type=PermissionType.ANY),
            creation(READ, principal="alice"),
            creation(CLUSTER, resource_name="mine"),
            creation(READ, resource_type=ResourceType.USER),
        ]
        codes = await create(broker, *bad, creation(READ))
        assert codes == [ErrorCode.INVALID_REQUEST] * len(bad) + [0]
        assert await described(broker) == [READ]

    guarded(story)


def test_an_unknown_filter_selects_nothing_and_is_refused() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, creation(READ))
        for chosen in ({"operation": 99}, {"resource_type_filter": 0}, {"permission_type": 0}):
            assert (await ask_for(broker, **chosen)).error_code == ErrorCode.INVALID_REQUEST
            filters = [DeleteAclsFilter(**{**EVERYTHING, **chosen})]
            answer = await broker.ask(delete_acls, DeleteAclsRequest(filters=filters), 3)
            assert answer.filter_results[0].error_code == ErrorCode.INVALID_REQUEST
        assert await described(broker) == [READ]

    guarded(story)


def test_each_filter_of_one_request_lists_the_rules_it_selected() -> None:
    async def story(broker: AdministeredBroker) -> None:
        await create(broker, creation(READ), creation(PREFIXED))
        chosen: list[dict[str, int]] = [
            {"operation": AclOperation.READ},
            {"operation": 99},
            {"resource_type_filter": ResourceType.TOPIC},
        ]
        filters = [DeleteAclsFilter(**{**EVERYTHING, **each}) for each in chosen]
        results = (
            await broker.ask(delete_acls, DeleteAclsRequest(filters=filters), 3)
        ).filter_results
        assert [each.error_code for each in results] == [0, ErrorCode.INVALID_REQUEST, 0]
        assert [len(each.matching_acls) for each in results] == [1, 0, 2]
        assert await described(broker) == []

    guarded(story)


def test_too_many_changes_at_once_are_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "ACL_CHANGES_MAX", 1)

    async def story(broker: AdministeredBroker) -> None:
        codes = await create(broker, creation(READ), creation(PREFIXED), creation(READ, host=""))
        assert codes == [ErrorCode.POLICY_VIOLATION] * 2 + [ErrorCode.INVALID_REQUEST]
        assert await described(broker) == []

    guarded(story)


def test_many_rules_are_described_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "_SLICE_RULES", 2)

    async def story(broker: AdministeredBroker) -> None:
        wanted = [rule("READ", f"t{number // 2}", host=f"h{number}") for number in range(7)]
        assert await create(broker, *map(creation, wanted)) == [0] * 7
        assert await described(broker) == wanted

    guarded(story)


def test_without_an_authorizer_there_are_no_rules() -> None:
    async def story(broker: AdministeredBroker) -> None:
        assert (await ask_for(broker)).error_code == ErrorCode.SECURITY_DISABLED
        assert await create(broker, creation(READ)) == [ErrorCode.SECURITY_DISABLED]
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**EVERYTHING)])
        (result,) = (await broker.ask(delete_acls, request, 3)).filter_results
        assert result.error_code == ErrorCode.SECURITY_DISABLED

    administer(story)
