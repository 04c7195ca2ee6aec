"""A rule that one broker makes binds the clients of all others."""

from __future__ import annotations

from typing import Final

from tests.unit.broker.guarded import ALICE, HOST
from tests.unit.broker.handlers.test_acls import creation
from tests.unit.broker.one_broker import TOPIC, OneBroker, run
from tests.unit.broker.peers.several import new_world
from tests.unit.broker.transactional_client import ask
from tests.unit.coordinator.cluster.acls import rule
from tidelog.broker.handlers.cluster.acls import create_acls
from tidelog.protocol.schemas.security.acls import CreateAclsRequest
from tidelog.security.acl_codes import AclOperation, ResourceType

RULES: Final = {"authorizer_class_name": "acl", "super_users": "User:ANONYMOUS"}


def may_read(one: OneBroker) -> bool:
    authorizer = one.broker.services.cluster.authorizer
    assert authorizer is not None
    reads = AclOperation.READ, ResourceType.TOPIC, TOPIC
    return authorizer.decision(ALICE, HOST, *reads).is_allowed


async def until_all_judge(brokers: list[OneBroker], allowed: bool) -> None:
    for one in brokers:
        while may_read(one) is not allowed:
            await one.broker.environment.clock.sleep(0.001)


async def made(one: OneBroker, *, deny: bool = False) -> None:
    request = CreateAclsRequest(creations=[creation(rule("READ", TOPIC, deny=deny))])
    (result,) = (await ask(one, create_acls, request, 3)).results
    assert result.error_code == 0


def test_rules_of_one_broker_reach_the_others_by_a_hint() -> None:
    """Without hints, the brokers would read the metadata log only after minutes."""

    async def story() -> None:
        world = new_world(**RULES)
        async with world.broker(0) as first, world.broker(1) as second, world.broker(2) as third:
            everyone = [first, second, third]
            await until_all_judge(everyone, allowed=False)
            await made(second)
            await until_all_judge(everyone, allowed=True)
            await made(third, deny=True)
            await until_all_judge(everyone, allowed=False)

    run(story)


def test_rules_reach_a_broker_that_hears_no_hint() -> None:
    async def story() -> None:
        world = new_world(**(RULES | {"broker_heartbeat_interval_ms": 100}))
        async with world.broker(0) as first, world.broker(1) as second:
            await made(first)
            await until_all_judge([first, second], allowed=True)
            for one in (first, second):
                one.broker.coordination.admissions._peers._hints.ask = lambda *_: None
            await made(first, deny=True)
            await until_all_judge([first, second], allowed=False)

    run(story)
