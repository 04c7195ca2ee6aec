"""Every API with every kind of rule: the guard allows, refuses or hides each resource."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import pytest

from tests.unit.broker.dispatch.permission_cases import (
    BEGINNINGS,
    CASES,
    FINDS,
    GROUP,
    OPEN,
    TOPIC,
    Case,
    needs,
    rules_for,
    with_topic_id,
)
from tests.unit.broker.guarded import ADMIN, GuardedBroker, codes, guarded_broker
from tests.unit.broker.one_broker import run
from tests.unit.coordinator.cluster.acls import rule
from tidelog.broker.dispatch.permissions.table import PERMISSIONS
from tidelog.broker.dispatch.routes import HANDLERS
from tidelog.protocol.api import ApiKey
from tidelog.protocol.message import Request
from tidelog.protocol.schemas.cluster.topics import DeleteTopicsRequest
from tidelog.protocol.schemas.groups import DeleteGroupsRequest

DELETIONS: Final = frozenset({ApiKey.DELETE_TOPICS, ApiKey.DELETE_GROUPS})
"""Their cases name topics and groups that do not exist: the test below sends each request often."""


def test_every_handler_has_a_declaration() -> None:
    assert PERMISSIONS.keys() >= HANDLERS.keys() | OPEN
    for key in HANDLERS:
        permission = PERMISSIONS[key]
        assert permission.is_open == (key in OPEN)


def test_every_guarded_api_is_in_the_list_of_cases_with_what_it_needs() -> None:
    listed = {case.request.API_KEY for case in CASES if case.needed}
    assert listed | DELETIONS == HANDLERS.keys() - OPEN


@pytest.mark.parametrize(
    ("request_", "of", "name"),
    [
        (DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=30_000), "TOPIC", TOPIC),
        (DeleteGroupsRequest(groups_names=[GROUP]), "GROUP", GROUP),
    ],
)
def test_only_clients_that_may_delete_something_delete_it(
    request_: Request[Any], of: str, name: str
) -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await prepare(broker)
            broker.allow(*(rule(each, name, of=of) for each in ("DESCRIBE", "READ", "WRITE")))
            assert codes(await broker.ask(request_, 1)) == {needs("DELETE", of).refusal}
            broker.allow(rule("DELETE", name, of=of))
            assert codes(await broker.ask(request_, 1)) == set()

    run(main)


async def prepare(broker: GuardedBroker) -> UUID:
    """A topic, a group with a committed offset, and a transactional id."""
    topic_id = await broker.one.create_topic(TOPIC)
    for request, version in FINDS:
        await broker.ask(request, version, ADMIN)
    for request, version in BEGINNINGS:
        await broker.ask_until_served(request, version)
    return topic_id


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_request_is_served_if_and_only_if_the_rules_allow_the_request(case: Case) -> None:
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
