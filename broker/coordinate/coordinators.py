"""This broker's coordinators of groups and of transactions: one for each internal partition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from tidelog.broker.coordinate.coordinator_set import CoordinatorSet
from tidelog.broker.coordinate.group_work import GroupRuntime, GroupWorker
from tidelog.broker.coordinate.internal_log import InternalPartition
from tidelog.broker.coordinate.marker_delivery import MarkerDelivery, TransactionRuntime
from tidelog.broker.coordinate.marker_writer import MarkerWriter
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.partitions.log_writer import LogWriter
from tidelog.broker.partitions.partitions import Partition, PartitionRegistry
from tidelog.broker.peers.peers import Peers
from tidelog.broker.read.wal_tier import LogReader
from tidelog.broker.settings.group_config import GroupConfig
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.broker.settings.tables.groups import BIDIRECTIONAL, DOWNGRADE, UPGRADE
from tidelog.broker.telemetry.limits_met import LimitsMet
from tidelog.coordinator.budget import ID_LENGTH_MAX, Budget
from tidelog.coordinator.cluster.membership.zone_use import ZoneUse
from tidelog.coordinator.cluster.records.records import (
    ConfigScope,
    Record,
    TopicCreated,
    TopicDeleted,
)
from tidelog.coordinator.cluster.records.topics import TopicFate
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.decision import Decision
from tidelog.coordinator.group.commands import ForgetTopics, Reply
from tidelog.coordinator.group.machine import GroupMachine
from tidelog.coordinator.group.records.log_records import GroupRecord
from tidelog.coordinator.group.requests.classic_rebalance import GroupDecision
from tidelog.coordinator.group.requests.limits import (
    GROUP_BYTES_MAX,
    GROUPS_BYTES_MAX,
    GROUPS_MAX,
    MEMBER_BYTES_MAX,
    GroupBudgets,
)
from tidelog.coordinator.group.settings import ConsumerTimeouts, GroupSettings
from tidelog.coordinator.group.state.committed_offsets import CommittedOffsets
from tidelog.coordinator.group.state_table import GroupTable
from tidelog.coordinator.internal_topics import (
    GROUP_CODEC,
    GROUP_TOPIC,
    TRANSACTION_CODEC,
    TRANSACTION_TOPIC,
)
from tidelog.coordinator.runtime import CoordinatorRefused, CoordinatorRuntime, RuntimeState
from tidelog.coordinator.snapshot_format import SnapshotOrigin, StateTable
from tidelog.coordinator.snapshots import (
    SnapshotMetrics,
    SnapshotSchedule,
    Snapshotter,
    StateSnapshots,
)
from tidelog.coordinator.transaction import commands as transaction_commands
from tidelog.coordinator.transaction import log_records as transaction_records
from tidelog.coordinator.transaction.decision import TransactionDecision
from tidelog.coordinator.transaction.limits import (
    TRANSACTION_PARTITIONS_MAX,
    TRANSACTIONAL_IDS_MAX,
    TRANSACTIONS_PARTITIONS_MAX,
    TransactionBudgets,
)
from tidelog.coordinator.transaction.machine import TransactionMachine
from tidelog.coordinator.transaction.settings import TransactionCoordinatorSettings
from tidelog.coordinator.transaction.state_table import TransactionTable
from tidelog.errors import TidelogError
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.wal.write.writer import WalWriter

logger = logging.getLogger(__name__)

LAST_SNAPSHOT_RECORDS_MIN = 1000
"""Replay of fewer records is as fast as reading a snapshot."""

RecordT = TypeVar("RecordT")


class Coordinators:
    """Starts and stops coordinators as the led partitions change; `run` owns their tasks."""

    def __init__(
        self,
        environment: BrokerEnvironment,
        state: Callable[[], ClusterState],
        partitions: PartitionRegistry,
        wal: WalWriter,
        log_writer: LogWriter,
        reader: LogReader,
        settings: BrokerSettings,
        may_serve: Callable[[], bool],
        limits: LimitsMet,
        peers: Peers,
        refresh: Callable[[], Awaitable[object]],
    ) -> None:
        """`refresh` reads the metadata log to its end."""
        self._environment = environment
        self._state = state
        self._settings = settings
        self._cluster_id = state().cluster_id
        self._wal = wal
        self._log_writer = log_writer
        self._reader = reader
        self._group_settings = group_settings(settings)
        self._transaction_settings = transaction_settings(settings)
        self.background = environment.background
        """Runs work that occupies a worker for tens of milliseconds or more."""
        self.group_work = GroupWorker(environment.background)
        self._may_serve = may_serve
        self._limits = limits
        self._group_budgets = GroupBudgets(
            Budget(settings.integer(GROUPS_MAX)), Budget(settings.integer(GROUPS_BYTES_MAX))
        )
        self._transaction_budgets = TransactionBudgets(
            Budget(settings.integer(TRANSACTIONAL_IDS_MAX)),
            Budget(settings.integer(TRANSACTIONS_PARTITIONS_MAX)),
        )
        self._report_budgets()
        self._snapshot_interval_records = settings.integer("coordinator.snapshot.interval.records")
        self.snapshot_metrics = SnapshotMetrics()
        self._snapshotter = Snapshotter(environment.clock, self.snapshot_metrics)
        self._unstarted: list[CoordinatorRuntime[Any, Any, Any]] = []
        self._changed = asyncio.Event()
        self._closed = False
        self.markers = MarkerWriter(log_writer, lambda: self.groups, environment.clock)
        """Writes the markers that other coordinators send."""
        self._delivery = MarkerDelivery(
            self.markers,
            partitions,
            wal,
            peers,
            state,
            refresh,
            environment.clock,
            environment.entropy,
            environment.crash_points,
        )
        self._zone_use = ZoneUse()
        self.groups = CoordinatorSet(
            GROUP_TOPIC, state, partitions, self._start_groups, self._zone_use
        )
        self.transactions = CoordinatorSet(
            TRANSACTION_TOPIC, state, partitions, self._start_transactions, self._zone_use
        )
        # A deletion record names the topic by id only, and the state has forgotten the name.
        self._topic_names = {topic.topic_id: topic.name for topic in state().topics.values()}
        self.follow_leadership()

    @property
    def markers_unwritten(self) -> int:
        """Decided transactions whose markers some partition lacks. Any thread may read this."""
        return self._delivery.unwritten

    def wanted_zones(self) -> Mapping[TopicPartition, str]:
        """The zones from which most requests for this broker's coordinators come."""
        places = (*self.groups.places, *self.transactions.places)
        return self._zone_use.wanted(places, self._environment.clock.monotonic())

    def follow(self, records: Sequence[Record]) -> None:
        """Follow an entry of the metadata log that the partitions have followed."""
        deleted: dict[str, set[TopicId]] = {}
        for record in records:
            match record:
                case TopicCreated(topic_id=topic_id, name=name):
                    self._topic_names[topic_id] = name
                case TopicDeleted(topic_id=topic_id):
                    name = self._topic_names.pop(topic_id, "")
                    deleted.setdefault(name, set()).add(topic_id)
                case _:
                    pass
        self.follow_leadership()
        if deleted:
            self._forget_topics(deleted)

    def follow_leadership(self) -> None:
        """Start and stop coordinators as the led partitions require."""
        if not self._closed:
            self.groups.follow_leadership()
            self.transactions.follow_leadership()
            self._delivery.leaders_changed()

    def faults(self) -> list[tuple[str, TidelogError]]:
        """The partitions whose coordinators cannot serve, by name, with the reason.

        Any thread may call this.
        """
        return [(each.name, each.fault) for each in self._all() if each.fault is not None]

    def committed_offsets(self) -> list[CommittedOffsets]:
        """The offsets of all groups whose coordinators are ready. Any thread may call this."""
        machines = [each.loaded_machine for each in self.groups.all()]
        return [each.offsets for each in machines if isinstance(each, GroupMachine)]

    async def snapshot(self) -> None:
        """Write snapshots of the states that a successor would replay slowly, one after the other.

        Raises StoreError, and other TidelogErrors after the incarnation has ended.
        """
        for runtime in self._all():
            if runtime.is_behind_its_snapshot(LAST_SNAPSHOT_RECORDS_MIN):
                await runtime.snapshot()

    def close(self) -> None:
        """Refuse every waiting request; append nothing any more."""
        self._closed = True
        self.groups.stop()
        self.transactions.stop()
        self._changed.set()

    async def run(self) -> None:
        """Load coordinators, serve their timers and deliver markers until closed."""
        async with asyncio.TaskGroup() as tasks:
            delivering = tasks.create_task(self._delivery.run(), name="markers")
            snapshotting = tasks.create_task(self._snapshotter.run(), name="snapshots")
            working = tasks.create_task(self.group_work.run(), name="group work")
            while not self._closed:
                self._changed.clear()
                for runtime in self._unstarted:
                    tasks.create_task(runtime.run(), name=runtime.name)
                self._unstarted.clear()
                await self._changed.wait()
            delivering.cancel()
            snapshotting.cancel()
            working.cancel()

    def _all(self) -> list[CoordinatorRuntime[Any, Any, Any]]:
        return [*self.groups.all(), *self.transactions.all()]

    def _start_groups(self, partition: Partition) -> GroupRuntime:
        def carried_out(decision: Decision[GroupRecord, Reply]) -> None:
            self._count_refusals(decision)
            if isinstance(decision, GroupDecision) and decision.work:
                self.group_work.begin(runtime, decision.work)

        runtime: GroupRuntime = CoordinatorRuntime(
            str(partition),
            self._log(partition),
            lambda: GroupMachine(
                self._group_settings,
                self._consumer_timeouts,
                self._group_budgets,
                self._is_deleted,
            ),
            GROUP_CODEC,
            self._environment.clock,
            self._environment.offload,
            self._may_serve,
            self._snapshots(partition, GroupTable()),
            self._snapshotter,
            carried_out,
        )
        self._start(runtime)
        return runtime

    def _consumer_timeouts(self, group_id: str) -> ConsumerTimeouts:
        """The timeouts in force for a consumer group."""
        overrides = self._state().configs(ConfigScope.GROUP, group_id)
        if not overrides:
            return self._group_settings.consumer_timeouts(group_id)
        return GroupConfig(overrides, self._settings).consumer_timeouts

    def _start_transactions(self, partition: Partition) -> TransactionRuntime:
        def carried_out(
            decision: Decision[transaction_records.TransactionRecord, transaction_commands.Reply],
        ) -> None:
            if decision.limits:
                self._count_refusals(decision)
            if isinstance(decision, TransactionDecision):
                for markers in decision.markers:
                    self._delivery.deliver(runtime, markers)

        runtime: TransactionRuntime = CoordinatorRuntime(
            str(partition),
            self._log(partition),
            lambda: TransactionMachine(
                self._transaction_settings,
                partition.log.leader_epoch,
                self._transaction_budgets,
            ),
            TRANSACTION_CODEC,
            self._environment.clock,
            self._environment.offload,
            self._may_serve,
            self._snapshots(partition, TransactionTable()),
            self._snapshotter,
            carried_out,
        )
        self._start(runtime)
        return runtime

    def _report_budgets(self) -> None:
        groups, transactions = self._group_budgets, self._transaction_budgets
        for name, budget in (
            (GROUPS_MAX, groups.groups),
            (GROUPS_BYTES_MAX, groups.size_bytes),
            (TRANSACTIONAL_IDS_MAX, transactions.ids),
            (TRANSACTIONS_PARTITIONS_MAX, transactions.partitions),
        ):
            self._limits.watch(name, budget.limit, partial(getattr, budget, "held"))

    def _count_refusals(self, decision: Decision[Any, Any]) -> None:
        for limit in decision.limits:
            self._limits.met(limit.setting, limit.why)

    def _log(self, partition: Partition) -> InternalPartition:
        origin = self._origin(partition)
        return InternalPartition(partition, origin, self._wal, self._log_writer, self._reader)

    def _origin(self, partition: Partition) -> SnapshotOrigin:
        return SnapshotOrigin(self._cluster_id, partition.topic_name, *partition.log.partition)

    def _snapshots(
        self, partition: Partition, table: StateTable[RecordT]
    ) -> StateSnapshots[RecordT]:
        return StateSnapshots(
            self._environment.store,
            self._environment.clock,
            self._environment.offload,
            self._environment.crash_points,
            self.snapshot_metrics,
            self._origin(partition),
            partition.log.leader_epoch,
            table,
            SnapshotSchedule(self._snapshot_interval_records),
        )

    def _start(self, runtime: CoordinatorRuntime[Any, Any, Any]) -> None:
        self._unstarted.append(runtime)
        self._changed.set()

    def _forget_topics(self, topics: Mapping[str, Collection[TopicId]]) -> None:
        """Tell the ready coordinators; the others forget the topics after they load their logs."""
        for runtime in self.groups.all():
            if runtime.state is RuntimeState.READY:
                try:
                    runtime.submit(ForgetTopics(topics))
                except CoordinatorRefused as error:
                    logger.warning(
                        "offsets of deleted topics stay until their coordinator is loaded again",
                        extra={"why": str(error)},
                    )

    def _is_deleted(self, topic: str, topic_id: TopicId | None) -> bool:
        """Whether the topic of an offset commit in the log has been deleted.

        The state knows every topic that one of this broker's logs names. A topic is created before
        its first commit. The entry that made this broker the leader is later than all entries that
        an earlier leader saw. So a topic that the state does not know was deleted, except ids of
        fate UNKNOWN: the metadata log has lost entries (C11), and the coordinator keeps the offset.
        Ids are never reused, so the answer stays right, also after a crash.

        Records of the first release carry no id. They count for the topic of that name.
        """
        found = self._state().topic_named(topic)
        if topic_id is None:
            return found is None
        if found is not None and found.topic_id == topic_id:
            return False
        return self._state().fate_of(topic_id) in (TopicFate.DELETED, TopicFate.FORGOTTEN)


def transaction_settings(settings: BrokerSettings) -> TransactionCoordinatorSettings:
    """The transaction coordinator's part of the broker settings."""
    return TransactionCoordinatorSettings(
        timeout_ms_max=settings.integer("transaction.max.timeout.ms"),
        timeout_check_interval_ms=settings.integer(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        ),
        id_expiration_ms=settings.integer("transactional.id.expiration.ms"),
        id_length_max=settings.integer(ID_LENGTH_MAX),
        partitions_max=settings.integer(TRANSACTION_PARTITIONS_MAX),
        expiry_check_interval_ms=settings.integer(
            "transaction.remove.expired.transaction.cleanup.interval.ms"
        ),
    )


def group_settings(settings: BrokerSettings) -> GroupSettings:
    """The group coordinator's part of the broker settings."""
    migration = settings.text("group.consumer.migration.policy")
    return GroupSettings(
        initial_rebalance_delay_ms=settings.integer("group.initial.rebalance.delay.ms"),
        session_timeout_ms_min=settings.integer("group.min.session.timeout.ms"),
        session_timeout_ms_max=settings.integer("group.max.session.timeout.ms"),
        members_max=settings.integer("group.max.size"),
        consumer_session_timeout_ms=settings.integer("group.consumer.session.timeout.ms"),
        consumer_heartbeat_interval_ms=settings.integer("group.consumer.heartbeat.interval.ms"),
        consumer_members_max=settings.integer("group.consumer.max.size"),
        consumer_assignors=settings.items_of("group.consumer.assignors"),
        regex_length_max=settings.integer("regex.length.max"),
        regex_lookup_interval_ms=settings.integer("group.consumer.regex.lookup.interval.ms"),
        upgrades=migration in (UPGRADE, BIDIRECTIONAL),
        downgrades=migration in (DOWNGRADE, BIDIRECTIONAL),
        offset_metadata_characters_max=settings.integer("offset.metadata.max.bytes"),
        offsets_retention_ms=settings.integer("offsets.retention.minutes") * 60_000,
        offsets_check_interval_ms=settings.integer("offsets.retention.check.interval.ms"),
        id_length_max=settings.integer(ID_LENGTH_MAX),
        member_bytes_max=settings.integer(MEMBER_BYTES_MAX),
        group_bytes_max=settings.integer(GROUP_BYTES_MAX),
    )
