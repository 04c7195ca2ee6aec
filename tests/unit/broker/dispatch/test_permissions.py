"""Every API with every kind of rule: the guard allows, refuses or hides each resource."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.unit.broker.dispatch.permission_cases import (
    BEGINNINGS,
    CASES,
    FINDS,
    OPEN,
    TOPIC,
    Case,
    rules_for,
    with_topic_id,
)
from tests.unit.broker.guarded import ADMIN, GuardedBroker, guarded_broker
from tests.unit.broker.one_broker import run
from tidelog.broker.dispatch.permissions.table import PERMISSIONS
from tidelog.broker.dispatch.routes import HANDLERS


def test_every_handler_has_a_declaration() -> None:
    assert PERMISSIONS.keys() >= HANDLERS.keys() | OPEN
    for key in HANDLERS:
        permission = PERMISSIONS[key]
        assert permission.is_open == (key in OPEN)


def test_every_guarded_api_is_in_the_list_of_cases() -> None:
    assert {case.request.API_KEY for case in CASES} >= HANDLERS.keys() - OPEN


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
