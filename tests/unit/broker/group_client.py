"""A member of a classic group, which uses any version of the protocol."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, services_of
from tidelog.broker.handlers.groups.coordinator import find_coordinator
from tidelog.broker.handlers.groups.group_offsets import offset_commit, offset_fetch
from tidelog.broker.handlers.groups.groups import join_group, sync_group
from tidelog.clock import SystemClock
from tidelog.coordinator.runtime import RuntimeState
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.coordinators import FindCoordinatorRequest
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidelog.protocol.schemas.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidelog.storage.stores.memory import MemoryStore

R = TypeVar("R", bound=Response)
GROUP = "g"
SETTINGS = {"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 5}


def world(**settings: object) -> World:
    return World(MemoryStore(SystemClock()), **{**SETTINGS, **settings})


async def ask(broker: OneBroker, handler: Any, request: Request[R], version: int) -> R:
    """Ask as a client of that version does: request and answer are encoded and decoded."""
    sent = b"".join(map(bytes, encode(request, version)))
    received = decode(type(request), sent, version)
    response = await handler(services_of(broker.broker, handler), received, broker.context(version))
    return decode(type(response), b"".join(map(bytes, encode(response, version))), version)


async def find(broker: OneBroker, version: int = 3) -> None:
    request = (
        FindCoordinatorRequest(key=GROUP)
        if version < 4
        else FindCoordinatorRequest(coordinator_keys=[GROUP])
    )
    response = await ask(broker, find_coordinator, request, version)
    found = response if version < 4 else response.coordinators[0]
    assert (found.error_code, found.node_id) == (ErrorCode.NONE, 0)
    assert (found.host, found.port) == broker.broker.membership.advertised


async def join(
    broker: OneBroker, member_id: str = "", version: int = 3, instance_id: str | None = None
) -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"subscription")],
    )
    if version >= 1:
        request.rebalance_timeout_ms = 60_000
    if version >= 5:
        request.group_instance_id = instance_id
    return await ask(broker, join_group, request, version)


async def sync(broker: OneBroker, joined: JoinGroupResponse, version: int = 3) -> bytes:
    request = SyncGroupRequest(
        group_id=GROUP,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[
            SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"all")
            for each in joined.members
        ],
    )
    if version >= 5:
        request.protocol_type, request.protocol_name = "consumer", "range"
    response = await ask(broker, sync_group, request, version)
    assert response.error_code == ErrorCode.NONE
    return bytes(response.assignment)


async def enter(broker: OneBroker) -> JoinGroupResponse:
    """Join as the only member of a stable group."""
    await find(broker)
    joined = await join(broker)
    assert joined.error_code == ErrorCode.NONE
    assert await sync(broker, joined) == b"all"
    return joined


async def commit(
    broker: OneBroker,
    offset: int,
    joined: JoinGroupResponse | None = None,
    *,
    topic: str = TOPIC,
    version: int = 6,
    retention_time_ms: int = -1,
) -> ErrorCode:
    request = OffsetCommitRequest(
        group_id=GROUP,
        retention_time_ms=retention_time_ms,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(committed_offset=offset, committed_metadata="m")
                ],
            )
        ],
    )
    if joined is not None:
        request.generation_id_or_member_epoch = joined.generation_id
        request.member_id = joined.member_id
    response = await ask(broker, offset_commit, request, version)
    return ErrorCode(response.topics[0].partitions[0].error_code)


async def committed(broker: OneBroker, version: int = 8) -> int:
    """The committed offset of the topic's only partition, or its negative error."""
    request = OffsetFetchRequest()
    if version >= 8:
        topic = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
        request.groups = [OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])]
    else:
        request.group_id = GROUP
        request.topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
    response = await ask(broker, offset_fetch, request, version)
    found = response.groups[0] if version >= 8 else response
    if version >= 2 and found.error_code:
        return -int(found.error_code)
    partition = found.topics[0].partitions[0]
    return -int(partition.error_code) if partition.error_code else partition.committed_offset


async def ready(broker: OneBroker) -> None:
    """Wait until every coordinator has loaded its log."""
    for _ in range(100_000):
        if all(
            r.state is not RuntimeState.LOADING
            for r in broker.broker.coordination.coordinators.groups.all()
        ):
            return
        await asyncio.sleep(0)
