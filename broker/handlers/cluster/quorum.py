"""DescribeQuorum: the brokers as voters of the metadata log.

The log lies in the bucket, and each live broker appends to it with equal rights. So each of them is
a voter, and the answering one is shown as the leader: its view is read up to the log's end first.
The others' offsets come from their leases, which are as old as a heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import ClusterServices
from tidelog.concurrency import read_all
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.errors import TidelogError
from tidelog.identifiers import BrokerId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.quorum import (
    DescribeQuorumPartitionResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopicResponse,
    QuorumListener,
    QuorumNode,
    ReplicaState,
)

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_PARTITION: Final = 0
UNKNOWN_OFFSET: Final = -1
READS_AT_ONCE_MAX: Final = 16

logger = logging.getLogger(__name__)


async def describe_quorum(
    broker: ClusterServices, request: DescribeQuorumRequest, _context: RequestContext
) -> DescribeQuorumResponse:
    """The live brokers, each with the end of the metadata log that it knows."""
    await broker.renewal.renewed(even_if_alone=True)
    live = broker.metadata.state.live_brokers()
    ends = await _log_ends(broker, live)
    return DescribeQuorumResponse(
        error_message=None,
        topics=[
            DescribeQuorumTopicResponse(
                topic_name=topic.topic_name,
                partitions=[
                    _quorum(broker, topic.topic_name, each.partition_index, ends)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=[
            QuorumNode(
                node_id=info.broker_id,
                listeners=[
                    QuorumListener(name=each.listener, host=each.host, port=each.port)
                    for each in info.listeners
                ],
            )
            for info in live
        ],
    )


async def _log_ends(broker: ClusterServices, live: Sequence[BrokerInfo]) -> Mapping[BrokerId, int]:
    """The next entry that each broker reads, by broker id; UNKNOWN_OFFSET without a lease."""
    others = [info for info in live if info.epoch != broker.incarnation.epoch]

    async def end_of(info: BrokerInfo) -> int:
        try:
            lease = await broker.lease_of(info.broker_id)
        except TidelogError as error:
            logger.warning(
                "a broker's lease cannot be read",
                extra={"incarnation": str(info.incarnation), "why": str(error)},
            )
            return UNKNOWN_OFFSET
        is_its_own = lease is not None and lease.epoch == info.epoch
        stamp = lease.metadata if lease is not None and is_its_own else None
        return UNKNOWN_OFFSET if stamp is None else stamp.sequence + 1

    found = await read_all(end_of, others, asyncio.Semaphore(READS_AT_ONCE_MAX))
    ends = dict(zip((info.broker_id for info in others), found, strict=True))
    return {broker.incarnation.broker_id: broker.metadata.state.sequence + 1, **ends}


def _quorum(
    broker: ClusterServices, name: str, number: int, ends: Mapping[BrokerId, int]
) -> DescribeQuorumPartitionResponse:
    if (name, number) != (METADATA_TOPIC, METADATA_PARTITION):
        return DescribeQuorumPartitionResponse(
            partition_index=number,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"{METADATA_TOPIC}-{METADATA_PARTITION} alone has a quorum",
            leader_id=-1,
        )
    me, now_ms = broker.incarnation, broker.clock.time_ms()
    return DescribeQuorumPartitionResponse(
        partition_index=number,
        error_message=None,
        leader_id=me.broker_id,
        leader_epoch=me.epoch,
        high_watermark=ends[me.broker_id],
        current_voters=[
            ReplicaState(
                replica_id=broker_id,
                log_end_offset=end,
                last_caught_up_timestamp=now_ms if broker_id == me.broker_id else -1,
            )
            for broker_id, end in sorted(ends.items())
        ],
    )
