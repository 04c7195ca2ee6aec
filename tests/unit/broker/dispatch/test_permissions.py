"""Every API with every kind of rule, and what the guard tells and hides."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any
from uuid import UUID

import pytest

from tests.unit.broker.dispatch.permission_cases import (
    CASES,
    GROUP,
    OPEN,
    TOPIC,
    TOPIC_ID,
    TRANSACTION,
    Case,
    Needed,
)
from tests.unit.broker.guarded import ADMIN, GuardedBroker, guarded_broker
from tests.unit.broker.one_broker import run
from tidelog.broker.dispatch.permissions.table import PERMISSIONS
from tidelog.broker.dispatch.routes import HANDLERS
from tidelog.coordinator.cluster.records.acl_rules import AclRule
from tidelog.protocol.message import Struct
from tidelog.protocol.schemas.coordinators import FindCoordinatorRequest
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.schemas.transactions import InitProducerIdRequest

DESCRIBING = {"READ", "WRITE", "DELETE", "ALTER", "DESCRIBE"}


def test_every_handler_has_a_declaration() -> None:
    assert PERMISSIONS.keys() >= HANDLERS.keys() | OPEN
    for key in HANDLERS:
        permission = PERMISSIONS[key]
        assert permission.is_open == (key in OPEN)


def test_every_guarded_api_is_in_the_list_of_cases() -> None:
    assert {case.request.API_KEY for case in CASES} >= HANDLERS.keys() - OPEN


def rules_for(need: Needed) -> Iterator[tuple[str, list[AclRule], bool]]:
    """Each kind of rule, and whether it allows what is needed."""
    everywhere = need.rule(name="*")
    prefix = need.name[:3]
    yield "no rule", [], False
    yield "allow", [need.rule()], True
    yield "all operations", [need.rule("ALL")], True
    yield "prefix", [need.rule(name=prefix, prefixed=True)], True
    yield "wildcard", [everywhere], True
    yield "deny everywhere", [need.rule(), need.rule(name="*", deny=True)], False
    # A denial for one resource leaves others.
    yield "deny", [everywhere, need.rule(deny=True)], need.is_of_any
    denying = need.rule(name=prefix, prefixed=True, deny=True)
    yield "deny by a prefix", [everywhere, denying], need.is_of_any
    yield "deny everyone", [everywhere, need.rule(principal="User:*", deny=True)], need.is_of_any
    yield "another resource", [need.rule(name=need.name + "2")], need.is_of_any
    yield "another principal", [need.rule(principal="User:bob")], False
    yield "another host", [need.rule(host="10.0.0.9")], False
    is_about_describing = need.operation == "DESCRIBE"
    yield "describe only", [need.rule("DESCRIBE")], is_about_describing
    for operation in sorted(DESCRIBING - {need.operation}):
        implies = is_about_describing or operation == need.instead
        yield f"{operation} only", [need.rule(operation)], implies


async def prepare(broker: GuardedBroker) -> UUID:
    """A topic, a group with a committed offset, and a transactional id."""
    topic_id = await broker.one.create_topic(TOPIC)
    commit = OffsetCommitRequest(
        group_id=GROUP,
        topics=[
            OffsetCommitRequestTopic(
                name=TOPIC,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=0, committed_metadata=""
                    )
                ],
            )
        ],
    )
    initialise = InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=60_000)
    for kind, key in ((0, GROUP), (1, TRANSACTION)):
        find = FindCoordinatorRequest(coordinator_keys=[key], key_type=kind)
        await broker.ask(find, 4, ADMIN)
    await broker.ask_until_served(commit, 8)
    await broker.ask_until_served(initialise, 4)
    return topic_id


def with_topic_id(node: Any, topic_id: UUID) -> Any:
    """A copy with the topic's real id."""
    node = deepcopy(node)

    def fill(struct: Struct) -> None:
        for field in struct.FIELDS:
            value = getattr(struct, field.name)
            if value == TOPIC_ID:
                setattr(struct, field.name, topic_id)
            for each in value if isinstance(value, list) else ():
                if isinstance(each, Struct):
                    fill(each)

    fill(node)
    return node


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_request_is_served_if_and_only_if_the_rules_allow_it(case: Case) -> None:
    async def main() -> None:
        async with guarded_broker(**case.settings) as broker:
            request = with_topic_id(case.request, await prepare(broker))
            for version in case.versions:
                for need in case.needed:
                    others = [each.rule() for each in case.needed if each is not need]
                    for kind, rules, is_allowed in rules_for(need):
                        broker.allow(*dict.fromkeys([*others, *rules]))
                        answer = await broker.ask(request, version)
                        refused = case.is_refused(answer, need)
                        assert refused != is_allowed, (kind, need, version, answer)
                    broker.allow(need.rule(deny=True))
                    answer = await broker.ask(request, version, ADMIN)
                    assert not case.is_refused(answer, need), ("super user", version, answer)

    run(main)
