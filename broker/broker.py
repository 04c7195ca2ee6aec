"""One broker incarnation: everything between the sockets and the bucket, put together.

The start, step by step, and what a death in between leaves behind:

1. Probe the store, open the metadata log (an empty prefix becomes a cluster). Nothing of ours.
2. Listen, so that the address is known. Clients that connect early are served once we are ready.
3. Register (B1), in the entry that fences the incarnation before us, once the brokers of all other
   ids are shown to be dead; fence those. Dying here leaves a registered incarnation without a WAL;
   the next start fences it like any other.
4. Take over what was fenced and not retired (C4): seal its WAL, retire it. Each step may be
   repeated by anybody.
5. Recover the partitions that are ours now from their bases (C5, C6). Only reads.
6. Serve. The first thing written of a partition is its image (C2).

The end: every failure that makes the outcome of an append unknown, and every sign of having been
superseded, ends `run` with the reason; a new incarnation starts from the bucket. A polite stop
finishes requests, flushes the WAL, writes a checkpoint and fences itself, so that a successor
anywhere need not wait for the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tidelog.broker.append.adopter import Adopter
from tidelog.broker.append.appender import Appender, Submission
from tidelog.broker.append.large_batches import LargeBatches
from tidelog.broker.clean.log_cleaner import LogCleaner
from tidelog.broker.clean.table_path import TablePath
from tidelog.broker.coordinate.coordinators import Coordinators
from tidelog.broker.coordinate.transaction_admission import Admissions
from tidelog.broker.dispatch.dispatcher import Dispatcher
from tidelog.broker.dispatch.long_requests import LongRequests
from tidelog.broker.dispatch.routes import HANDLERS
from tidelog.broker.environment import Surroundings
from tidelog.broker.fairness.answer_memory import AnswerMemory
from tidelog.broker.fairness.connection_limits import ConnectionLimits
from tidelog.broker.fairness.slice_turns import SliceTurns
from tidelog.broker.maintenance import Upkeep
from tidelog.broker.network.server import KafkaServer
from tidelog.broker.partitions.log_writer import LogWriter
from tidelog.broker.partitions.partitions import PartitionRegistry
from tidelog.broker.partitions.producer_room import PRODUCER_IDS_MAX, ProducerRoom
from tidelog.broker.read.fetch_session import FetchSessions
from tidelog.broker.read.fetcher import Fetcher
from tidelog.broker.read.layer_metrics import SnapshotCollector, UnservedCollector, WalCollector
from tidelog.broker.read.offset_lookup import OffsetLookup
from tidelog.broker.read.read_path import ReadPath
from tidelog.broker.roll.roller import Roller
from tidelog.broker.settings import layers as layer_settings
from tidelog.broker.settings.live import LiveSettings
from tidelog.broker.settings.settings import BrokerSettings, TopicConfig
from tidelog.broker.shutdown import fence_oneself, leave_checkpoint, leave_snapshots
from tidelog.broker.tables.segment_ages import SegmentAges, SegmentAgingStore
from tidelog.broker.tables.tables import Tables
from tidelog.broker.telemetry.fault_log import FaultLog
from tidelog.broker.telemetry.limits_met import LimitsMet
from tidelog.broker.telemetry.metrics import LARGE_BATCHES_WAITING, BrokerMetrics
from tidelog.broker.topics.auto_creations import AutoCreations
from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.leases import NO_PROGRESS, WalProgress
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.lease_keeper import LeaseKeeper
from tidelog.coordinator.cluster.membership.openings import Openings
from tidelog.coordinator.cluster.membership.own_fence import OwnFence
from tidelog.coordinator.cluster.membership.producer_ids import ProducerIds
from tidelog.coordinator.cluster.membership.registration import register
from tidelog.coordinator.cluster.membership.takeover import take_over_fenced
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import ConfigsChanged, Record
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject, Refused, TidelogError, some_of
from tidelog.identifiers import BrokerId, Incarnation, MetadataStamp, TopicId
from tidelog.network import Network
from tidelog.offload import Offload
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.probe import probe
from tidelog.wal.recover.recovery import recover
from tidelog.wal.write.checkpoint import Checkpointer
from tidelog.wal.write.writer import DurableSlot, WalWriter

logger = logging.getLogger(__name__)

NAMES_IN_HEALTH = 20
"""Of partitions, for each fault; the metrics have them all."""
PRODUCER_EXPIRY_SECONDS = 60.0
FETCH_SESSION_ID_MAX = 2**31 - 1


class Broker:
    """Construct it, `run` it once, `stop` it. Handlers see it as `services.DataServices`."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        broker_id: BrokerId,
        listen: tuple[str, int],
        advertise: tuple[str, int] | None,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        network: Network,
        metrics: BrokerMetrics,
        process: ProcessIdentity,
        is_running: Callable[[ProcessIdentity], bool | None],
        background: Offload | None = None,
        rolling: Offload | None = None,
        cleaning: Offload | None = None,
        large_batches: Offload | None = None,
        crash_points: CrashPoints = NO_CRASH_POINTS,
        descriptors_max: int | None = None,
    ) -> None:
        """`background`: for work that keeps a worker busy for tens of milliseconds (what is read of
        segments, searches for a time), so that producers do not wait for it; `offload` if it is not
        given. `rolling`: for rolls; `background` if not.
        `cleaning`: for log compaction, which may keep one busy for a second; `background` if not.
        `large_batches`: for produced batches that take far longer than others; `offload` if not.
        `crash_points`: for tests that let the process die at a given moment. `descriptors_max`: how
        many file descriptors the process may have, if that has a limit.

        Raises:
            Refused: so few descriptors that none is left for connections.
        """
        self._broker_id = broker_id
        self._listen = listen
        self._advertise = advertise
        self._segment_ages = SegmentAges(settings.integer("log.delete.grace.ms") / 1000)
        self._store = SegmentAgingStore(store, clock, self._segment_ages)
        self._offload = offload
        self._large_offload = large_batches or offload
        background = background or offload
        self._world = Surroundings(
            store=self._store,
            clock=clock,
            entropy=entropy,
            network=network,
            offload=offload,
            background=background,
            rolling=rolling or background,
            cleaning=cleaning or background,
            crash_points=crash_points,
        )
        self._process = process
        self._is_running = is_running
        self._crash_points = crash_points
        self.clock = clock
        self.entropy = entropy
        self.network = network
        self.metrics = metrics
        self.ready = asyncio.Event()
        """Set when the broker serves, and when it has ended without ever doing so."""
        self._stopping = asyncio.Event()
        self.turns = SliceTurns()
        self.auto_creations = AutoCreations()
        self.limits = LimitsMet(metrics.registry, clock)
        self._settings = LiveSettings(settings, broker_id, lambda: self.metadata.state)
        self._cluster_settings = layer_settings.cluster_settings(settings)
        self.fetch_sessions = FetchSessions(
            settings.integer("max.incremental.fetch.session.cache.slots"),
            lambda: entropy.uuid().int % FETCH_SESSION_ID_MAX + 1,
        )
        self._reads = ReadPath(self._world, settings)
        self._connection_limits = ConnectionLimits(self._settings.now, descriptors_max)
        self._large_batches: LargeBatches[int, Submission] = LargeBatches(
            settings.integer("large.batches.connection.percent.max"),
            settings.integer("large.batches.percent.max"),
        )
        self._answers = AnswerMemory(settings.integer("queued.max.answer.bytes"))
        self.read_faults = FaultLog(self.clock)
        self._is_serving = False
        self._wal_opened = False
        # Known after the start's steps, in this order.
        self.metadata: MetadataLog
        self.advertised: tuple[str, int]
        self.listening: tuple[str, int]
        self.incarnation: Incarnation
        self._lease: LeaseKeeper
        self._fence: OwnFence
        self.partitions: PartitionRegistry
        self.tables: Tables
        self._table_path: TablePath
        self.roller: Roller
        self.cleaner: LogCleaner
        self.fetcher: Fetcher
        self.offset_lookup: OffsetLookup
        self.wal: WalWriter
        self.appender: Appender
        self.producer_ids: ProducerIds
        self.coordinators: Coordinators
        self.admissions: Admissions
        self._checkpointer: Checkpointer
        self._openings: Openings
        self.upkeep: Upkeep

    # What handlers ask for.

    @property
    def settings(self) -> BrokerSettings:
        """The settings that hold now, altered ones included."""
        return self._settings.now()

    @property
    def store_url(self) -> str:
        """The bucket's address, without credentials."""
        return self._store.url

    @property
    def cluster_id(self) -> str:
        """The bucket's cluster id."""
        return self.metadata.state.cluster_id

    @property
    def is_ready(self) -> bool:
        """Whether requests are served."""
        return self._is_serving

    def topic_config(self, topic_id: TopicId) -> TopicConfig:
        """The settings that hold now for an existing topic. KeyError if there is none."""
        return self._settings.topic_config(topic_id)

    def durable(self) -> asyncio.Future[None]:
        """Done when all that was appended so far is durable. Fails with WalLost."""
        return self.wal.durable(self.wal.newest_slot)

    def may_serve_reads(self) -> bool:
        """Whether the lease is fresh enough to answer what others may have changed (B3)."""
        return self._lease.fresh(self.clock.monotonic()) and not self._fence.is_found

    def faults(self) -> Sequence[str]:
        """What is wrong, in words, for the health endpoint. May be called from any thread."""
        if not self._is_serving:
            return ["the broker is starting or has ended"]
        found = []
        if not self.may_serve_reads():
            found.append("the lease could not be renewed in time; reads are not answered")
        unserved: dict[str, dict[str, None]] = {}
        for partition, fault in (*self.unserved(), *self.coordinators.faults()):
            unserved.setdefault(str(fault), {})[partition] = None
        found += [
            f"{fault}; not served: {some_of(list(names), NAMES_IN_HEALTH)}"
            for fault, names in unserved.items()
        ]
        found += map(str, self.roller.faults())
        return found

    def unserved(self) -> list[tuple[str, CorruptObject]]:
        """Partitions that cannot be served, or not in full, by name, and the damaged object that is
        to blame. May be called from any thread."""
        if not self._is_serving:
            return []
        faulty: list[tuple[str, TidelogError | None]]
        faulty = [(str(each), each.fault) for each in self.partitions.faulty]
        faulty += self.coordinators.faults()
        found = [(name, fault) for name, fault in faulty if isinstance(fault, CorruptObject)]
        return [*found, *self.read_faults.standing()]

    # Life.

    def stop(self) -> None:
        """End politely: `run` returns when everything accepted is durable."""
        self._stopping.set()

    async def run(self) -> None:
        """Start, serve until stopped, end. Raises what ended the incarnation otherwise."""
        try:
            await probe(self._store, self.entropy)
            self.metadata = await MetadataLog.open(
                self._store,
                self.clock,
                self.entropy,
                create=True,
                settings=self._cluster_settings,
                offload=self._offload,
            )
            try:
                await self._run_registered()
            finally:
                self._is_serving = False
                await self.metadata.close()
        except ExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            self.ready.set()

    async def _run_registered(self) -> None:
        self._settings.renew()
        elements_max = self.settings.integer("long.requests.elements.max")
        long_requests = LongRequests(self.turns, elements_max)
        server = KafkaServer(
            self,
            Dispatcher(HANDLERS, self.metrics, self.turns, long_requests),
            self._answers,
            self._connection_limits,
            # No connection is accepted before there is an appender.
            lambda connection: self.appender.lost(connection),
        )
        self.listening = address = await self._bind(server)
        self.advertised = self._advertise or address
        try:
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(self._serve(server, address))
                tasks.create_task(self._cancel_start_on_stop(serving))
        finally:
            await server.abort()
            await self._reads.close()

    async def _bind(self, server: KafkaServer) -> tuple[str, int]:
        host, port = self._listen
        try:
            return await server.bind(host, port)
        except OSError as error:
            raise Refused(
                f"cannot listen on {host}:{port}: {error.strerror}; stop what listens there or"
                " choose another address with --listen"
            ) from error

    async def _cancel_start_on_stop(self, serving: asyncio.Task[None]) -> None:
        """A stop before anything was acknowledged needs no farewell."""
        await self._stopping.wait()
        if not self._is_serving:
            serving.cancel()

    async def _serve(self, server: KafkaServer, address: tuple[str, int]) -> None:
        registered = await register(
            self.metadata,
            self._store,
            self.clock,
            self._broker_id,
            self.advertised,
            self._process,
            self._is_running,
            alone=True,
        )
        self.incarnation = registered.incarnation
        self._fence = OwnFence(self.metadata, self.incarnation)
        self._lease = LeaseKeeper(
            self._store,
            self.clock,
            self.entropy,
            self.metadata,
            self.incarnation,
            self._process,
            registered.started_at,
            self._wal_progress,
        )
        async with asyncio.TaskGroup() as tasks:
            background: list[asyncio.Task[Any]] = [
                tasks.create_task(self._lease.run()),
                tasks.create_task(self._fence.run()),
                tasks.create_task(
                    self.metadata.follow(self._cluster_settings.heartbeat_interval_ms)
                ),
            ]
            await self._open()
            wal = tasks.create_task(self.wal.run())
            appending = [
                tasks.create_task(self.appender.run()),
                tasks.create_task(self._checkpointer.run()),
                tasks.create_task(self.upkeep.open_inherited()),
                tasks.create_task(self.upkeep.merge()),
            ]
            background += [
                tasks.create_task(self._openings.run()),
                tasks.create_task(self.coordinators.run()),
                tasks.create_task(self.tables.run()),
                tasks.create_task(self._table_path.roll()),
                tasks.create_task(self.cleaner.run()),
                tasks.create_task(self._expire_producers()),
                tasks.create_task(self.upkeep.collect()),
            ]
            await server.start()
            self._is_serving = True
            self.ready.set()
            logger.info(
                "ready",
                extra={
                    "incarnation": str(self.incarnation),
                    "partitions": len(self.partitions),
                    "address": f"{address[0]}:{address[1]}",
                },
            )
            await self._stopping.wait()
            await leave_snapshots(self.coordinators, self.settings.integer("shutdown.timeout.ms"))
            # Joins that wait for other members, and fetches for records, would hold up the end.
            self.coordinators.close()
            self.fetcher.close()
            await server.close()
            # What is left there, nobody waits for any more; nothing may come behind the end.
            await _ended(appending)
            await leave_checkpoint(self._checkpointer)
            await self.wal.close()
            await wal
            durable_end = self.wal.durable_end
            self._fence.disregard()
            await fence_oneself(self.metadata, self._openings, self.incarnation, durable_end)
            for task in background:
                task.cancel()

    async def _open(self) -> None:
        """Take over what was fenced, recover the partitions, put the data path together."""
        await take_over_fenced(
            self.metadata,
            self._store,
            self.clock,
            self.entropy,
            self.incarnation,
            self.settings.integer("wal.uploads.in.flight.max"),
        )
        state = self.metadata.state
        epoch = self.incarnation.epoch
        self.partitions = PartitionRegistry(
            epoch, lambda: self.metadata.state, self._settings.append_limits
        )
        table_path = self._table_path = TablePath(
            self._world,
            lambda: self.metadata.state,
            self.partitions,
            self._reads.tail,
            self._settings,
            self._segment_ages,
            self.metrics.registry,
        )
        self.tables, self.roller = table_path.tables, table_path.roller
        self.fetcher = self._reads.fetcher(
            self.tables, self.may_serve_reads, self.read_faults, self._answers, self.turns
        )
        self.offset_lookup = self._reads.offset_lookup(self.tables)
        # From here on what others create for us is heard of; what is there already is recovered.
        self.metadata.subscribe(self._follow)
        # What was altered since we looked first, while we waited for a predecessor's end perhaps.
        self._settings.renew()
        recovered = await recover(
            self._store,
            self.clock,
            self._offload,
            {partition: state.tenures(partition) for partition in state.owned_by(epoch)},
            {wal.incarnation: wal.end_slot for wal in state.retired.values()},
            unopened={self.incarnation, *state.never_written},
        )
        for source, stamp in recovered.stamps.items():
            await self.metadata.verify(stamp, source)
        self.partitions.adopt(recovered.images, recovered.failures)
        self.metrics.partitions = len(self.partitions)
        for place, fault in recovered.failures.items():
            logger.error(
                "a partition cannot be opened",
                extra={
                    "partition": str(self.partitions.get(place) or place),
                    "key": fault.key,
                    "why": fault.why,
                },
            )
        await self._table_path.recovered.open()
        wal_settings = layer_settings.wal_settings(self.settings, self._store.url)
        self.wal = WalWriter(
            self._store,
            self.clock,
            self.entropy,
            self._offload,
            self.incarnation,
            wal_settings,
            self._durable,
            self._metadata_stamp,
            self._crash_points,
        )
        self.metrics.registry.register(WalCollector(self.wal.metrics))
        self._reads.register_metrics(self.metrics.registry)
        self._checkpointer = Checkpointer(
            self._store,
            self.clock,
            self._offload,
            self.wal,
            self.partitions.checkpointed,
            wal_settings.checkpoint_interval_bytes,
            wal_settings.checkpoint_interval_slots,
            self._metadata_stamp,
            self._crash_points,
        )
        self._wal_opened = True
        self._openings = Openings(
            self.metadata, self.clock, self.incarnation, lambda: self._checkpointer.floor
        )
        log_writer = LogWriter(
            self.wal,
            self.partitions,
            self._openings.add,
            ProducerRoom(
                self.partitions.producers, self.settings.integer(PRODUCER_IDS_MAX), self.limits
            ),
        )
        self.appender = Appender(
            self.wal,
            log_writer,
            self._offload,
            self.clock,
            self._large_batches,
            self._large_offload,
        )
        self.cleaner = table_path.cleaner(self.appender)
        self.producer_ids = ProducerIds(self.metadata, self.incarnation)
        self.coordinators = Coordinators(
            lambda: self.metadata.state,
            self.partitions,
            self._store,
            self.wal,
            log_writer,
            self._reads.log,
            self.settings,
            self.clock,
            self._offload,
            self._world.background,
            self.may_serve_reads,
            self._crash_points,
            self.limits,
        )
        self.admissions = Admissions(self.coordinators, self.clock)
        self.adopter = Adopter(
            self._store,
            self.clock,
            self._offload,
            self.wal,
            log_writer,
            self.partitions,
            self.admissions,
            self.settings.integer("staged.retention.ms"),
        )
        self.metrics.registry.register(SnapshotCollector(self.coordinators.snapshot_metrics))
        # After the partitions: a coordinator finds there what it is to coordinate.
        self.metadata.subscribe(lambda _, records: self.coordinators.follow(records))
        self.metrics.registry.register(UnservedCollector(self.unserved))
        self.metrics.gauge(
            LARGE_BATCHES_WAITING,
            "Produce requests that wait for the time to decompress large batches.",
            lambda: len(self._large_batches),
        )
        self.upkeep = Upkeep(
            self._world,
            self.metadata,
            self.wal,
            log_writer,
            self._reads.log,
            self.partitions,
            recovered.images,
            self._openings,
            self._checkpointer,
            self.settings,
        )
        self.metrics.registry.register(self.upkeep.metrics)

    def _durable(self, slot: DurableSlot) -> None:
        """A slot is durable: show what is in it, then let those go on who wait for it."""
        self._reads.tail.put(slot.key, slot.data)
        for advance in slot.advances:
            hosted = self.partitions.get(advance.partition)
            if hosted is None or hosted.log.leader_epoch != advance.leader_epoch:
                continue
            hosted.log.advance(advance)
            hosted.readers.wake_all()
            self.roller.note(hosted)
        self._checkpointer.note(slot)

    def _metadata_stamp(self) -> MetadataStamp:
        return self.metadata.state.stamp

    def _wal_progress(self) -> WalProgress:
        if self._wal_opened:
            return WalProgress(self.wal.durable_end, self._checkpointer.floor)
        return NO_PROGRESS

    async def _expire_producers(self) -> NoReturn:
        while True:
            await self.clock.sleep(PRODUCER_EXPIRY_SECONDS)
            expiration_ms = self.settings.integer("producer.id.expiration.ms")
            now_ms = self.clock.time_ms()
            self.partitions.producers.expire(now_ms, expiration_ms)

    # Settings that may be altered while we run.

    def _follow(self, _: int, records: Sequence[Record]) -> None:
        """Keep in step with the metadata log."""
        if any(isinstance(record, ConfigsChanged) for record in records):
            self._settings.renew()
        self.partitions.follow(records)
        self.tables.follow(records)
        self.roller.partitions_changed()
        self.metrics.partitions = len(self.partitions)


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and see them end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended the broker; the others are its consequences."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
