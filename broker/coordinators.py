"""The coordinators of this broker: one for each internal partition that it leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tidelog.broker.internal_log import InternalPartition
from tidelog.broker.internal_topics import GROUP_TOPIC
from tidelog.broker.log_reader import LogReader
from tidelog.broker.log_writer import LogWriter
from tidelog.broker.partitions import Partition, PartitionRegistry
from tidelog.broker.settings import BrokerSettings
from tidelog.clock import Clock
from tidelog.coordinator.cluster.records import Record, TopicCreated, TopicDeleted
from tidelog.coordinator.cluster.state import ClusterState
from tidelog.coordinator.group.commands import Command, ForgetTopics, Reply
from tidelog.coordinator.group.log_records import (
    GroupRecord,
    TransactionEnded,
    decode_record,
    encode_record,
)
from tidelog.coordinator.group.machine import GroupMachine
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.runtime import (
    Codec,
    CoordinatorRefused,
    CoordinatorRuntime,
    RuntimeState,
)
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.offload import Offload
from tidelog.protocol.error_codes import ErrorCode
from tidelog.wal.writer import WalWriter

logger = logging.getLogger(__name__)

GroupRuntime: TypeAlias = CoordinatorRuntime[Command, GroupRecord, Reply]
GROUP_CODEC: Codec[GroupRecord] = Codec(
    encode_record, lambda logged: decode_record(*logged), TransactionEnded
)


class Coordinators:
    """Which coordinators there are. Kept in step with the partitions; `run` owns their tasks."""

    def __init__(
        self,
        state: Callable[[], ClusterState],
        partitions: PartitionRegistry,
        wal: WalWriter,
        log_writer: LogWriter,
        reader: LogReader,
        settings: BrokerSettings,
        clock: Clock,
        offload: Offload,
        may_serve: Callable[[], bool],
    ) -> None:
        self._state = state
        self._partitions = partitions
        self._wal = wal
        self._log_writer = log_writer
        self._reader = reader
        self._group_settings = group_settings(settings)
        self._clock = clock
        self._offload = offload
        self._may_serve = may_serve
        self._groups: dict[TopicPartition, tuple[Partition, GroupRuntime]] = {}
        self._unstarted: list[GroupRuntime] = []
        self._changed = asyncio.Event()
        self._closed = False
        # A record of a deletion names the topic by its id only, and the state has forgotten it.
        self._topic_names = {topic.topic_id: topic.name for topic in state().topics.values()}
        self._keep_in_step()

    def follow(self, records: Sequence[Record]) -> None:
        """Keep in step with an entry of the metadata log, which the partitions have followed."""
        deleted = []
        for record in records:
            match record:
                case TopicCreated(topic_id=topic_id, name=name):
                    self._topic_names[topic_id] = name
                case TopicDeleted(topic_id=topic_id):
                    deleted.append(self._topic_names.pop(topic_id, ""))
                case _:
                    pass
        self._keep_in_step()
        if deleted:
            self._forget_topics(frozenset(deleted))

    def group(self, group_id: str) -> GroupRuntime:
        """The coordinator of a group. Raises CoordinatorRefused if this broker has not got it."""
        topic = self._state().topic_named(GROUP_TOPIC)
        if topic is not None:
            number = partition_for(group_id, topic.partition_count)
            found = self._groups.get(TopicPartition(topic.topic_id, number))
            if found is not None:
                return found[1]
        raise CoordinatorRefused(
            ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate group {group_id}"
        )

    def groups(self) -> list[GroupRuntime]:
        """The coordinators of all groups of this broker."""
        return [runtime for _, runtime in self._groups.values()]

    def close(self) -> None:
        """Send away whoever waits for others; nothing is appended any more."""
        self._closed = True
        for _, runtime in self._groups.values():
            runtime.stop()
        self._changed.set()

    async def run(self) -> None:
        """Load coordinators and serve their timers until closed."""
        async with asyncio.TaskGroup() as tasks:
            while not self._closed:
                self._changed.clear()
                for runtime in self._unstarted:
                    tasks.create_task(runtime.run(), name=runtime.name)
                self._unstarted.clear()
                await self._changed.wait()

    def _keep_in_step(self) -> None:
        topic = self._state().topic_named(GROUP_TOPIC)
        wanted: dict[TopicPartition, Partition] = {}
        if topic is not None:
            wanted = self._led(topic.topic_id, topic.partition_count)
        for place, (partition, runtime) in list(self._groups.items()):
            if wanted.get(place) is not partition:
                runtime.stop()
                del self._groups[place]
        if self._closed:
            return
        for place, partition in wanted.items():
            if place not in self._groups:
                self._groups[place] = partition, self._start(partition)

    def _led(self, topic_id: TopicId, count: int) -> dict[TopicPartition, Partition]:
        places = [TopicPartition(topic_id, number) for number in range(count)]
        found = {place: self._partitions.get(place) for place in places}
        return {place: each for place, each in found.items() if each is not None}

    def _start(self, partition: Partition) -> GroupRuntime:
        runtime: GroupRuntime = CoordinatorRuntime(
            str(partition),
            InternalPartition(partition, self._wal, self._log_writer, self._reader),
            lambda: GroupMachine(self._group_settings),
            GROUP_CODEC,
            self._clock,
            self._offload,
            self._may_serve,
        )
        self._unstarted.append(runtime)
        self._changed.set()
        return runtime

    def _forget_topics(self, topics: frozenset[str]) -> None:
        for runtime in self.groups():
            if runtime.state is RuntimeState.READY:
                try:
                    runtime.submit(ForgetTopics(topics))
                except CoordinatorRefused as error:
                    logger.warning("offsets of deleted topics stay", extra={"why": str(error)})


def group_settings(settings: BrokerSettings) -> GroupSettings:
    """The group coordinator's settings as a broker is configured."""
    return GroupSettings(
        initial_rebalance_delay_ms=settings.integer("group.initial.rebalance.delay.ms"),
        session_timeout_ms_min=settings.integer("group.min.session.timeout.ms"),
        session_timeout_ms_max=settings.integer("group.max.session.timeout.ms"),
        members_max=settings.integer("group.max.size"),
        offset_metadata_characters_max=settings.integer("offset.metadata.max.bytes"),
        offsets_retention_ms=settings.integer("offsets.retention.minutes") * 60_000,
        offsets_check_interval_ms=settings.integer("offsets.retention.check.interval.ms"),
    )
