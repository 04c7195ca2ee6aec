"""The workloads of a run's clients: a plain log, consumer groups beside it, or transactions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tests.simulation.actors.actor import Actor, WorkloadSettings
from tests.simulation.actors.auditors import audit_group, audit_stability, audit_states
from tests.simulation.actors.bucket_readers import BucketInspector, BucketReader
from tests.simulation.actors.group_readers import GroupReader
from tests.simulation.actors.producers import IdempotentProducer, PlainProducer
from tests.simulation.actors.readers import Consumer, Observer
from tests.simulation.actors.reborn_topic import RebornTopic
from tests.simulation.actors.sinks import QueryLog, SinkDriver
from tests.simulation.actors.topic_churn import TopicChurn, WideTopics
from tests.simulation.actors.transactors import TRANSFORM_GROUP, Transactor, Transformer
from tests.simulation.actors.trimmer import Trimmer
from tests.simulation.nemesis import PROFILES
from tests.simulation.policies import policies_of
from tests.simulation.rules.history import GroupProtocol, Isolation, Key

ActorProgram = Callable[[Actor], Coroutine[Any, Any, None]]

KEYS = (Key("orders", 0), Key("orders", 1), Key("orders", 2), Key("events", 0), Key("events", 1))
DERIVED = (Key("derived", 0), Key("derived", 1))
SUNK = (Key("sunk", 0), Key("sunk", 1))
WIDE_PARTITIONS_MAX = 120
READERS_GROUP = "readers"
CONSUMERS_GROUP = "consumers"
LONER_GROUP = "loner"

WORKLOADS: Mapping[str, WorkloadSettings] = {
    "log": WorkloadSettings(keys=KEYS),
    "groups": WorkloadSettings(
        keys=KEYS,
        producers=1,
        consumers=0,
        observers=1,
        topic_churns=0,
        group_readers=3,
        consumer_readers=3,
    ),
    "transactions": WorkloadSettings(
        keys=KEYS,
        producers=1,
        consumers=2,
        observers=1,
        topic_churns=0,
        transfers=2,
        transformers=2,
        consume_pause_seconds_mean=0.15,
        inputs=KEYS[:3],
        derived=DERIVED,
    ),
}
_REST_SECONDS_MEAN = {"a": 1.5, "b": 9.0}
"""How long each of the two instances of a transactional id rests between its lives."""


def workload_of(seed: int) -> str:
    """Seeds take the workloads in turn, so that each meets every profile of faults."""
    return list(WORKLOADS)[seed // len(PROFILES) % len(WORKLOADS)]


class Program(NamedTuple):
    """The work of one client, and its name."""

    name: str
    run: ActorProgram


def producers(settings: WorkloadSettings) -> list[Program]:
    """The programs that end by themselves when they have written everything."""
    isolations: list[Isolation] = ["read_committed", "read_uncommitted"]
    programs = [
        Program(f"producer-{number}", lambda actor: IdempotentProducer(actor).run())
        for number in range(settings.producers)
    ]
    programs += [
        Program(f"plain-{number}", lambda actor: PlainProducer(actor).run())
        for number in range(settings.plain_producers)
    ]
    programs += [
        Program(f"consumer-{number}", _consumer(isolations[number % 2]))
        for number in range(settings.consumers)
    ]
    programs += [
        Program(f"observer-{number}", lambda actor: Observer(actor).run())
        for number in range(settings.observers)
    ]
    programs += [
        Program(f"churn-{number}", lambda actor: TopicChurn(actor).run())
        for number in range(settings.topic_churns)
    ]
    if settings.wide_topics:
        programs.append(
            Program(
                "wide",
                lambda actor: WideTopics(actor, WIDE_PARTITIONS_MAX, settings.wide_topics).run(),
            )
        )
    programs += [
        Program(f"transfer-{number}{which}", _transactor(Transactor, f"transfer-{number}", rest))
        for number in range(settings.transfers)
        for which, rest in _REST_SECONDS_MEAN.items()
    ]
    programs += [
        Program(f"viewer-{number}", lambda actor: BucketReader(actor).run())
        for number in range(settings.viewers)
    ]
    programs += [
        Program(f"inspector-{number}", lambda actor: BucketInspector(actor).run())
        for number in range(settings.inspectors)
    ]
    log = QueryLog()
    programs += [
        Program(f"sink-{number}", lambda actor: SinkDriver(actor, log).run())
        for number in range(settings.sink_drivers)
    ]
    if settings.trimmed_keys:
        programs.append(Program("trimmer", lambda actor: Trimmer(actor).run()))
    programs += [
        Program(topic, lambda actor, topic=topic: RebornTopic(actor, topic).run())  # type: ignore[misc]
        for topic in settings.reborn_topics
    ]
    return programs


def members(settings: WorkloadSettings) -> list[Program]:
    """Members of groups, which read on until the audit has seen that everything was consumed."""
    programs = [
        Program(f"reader-{number}", _member(READERS_GROUP, "classic"))
        for number in range(settings.group_readers)
    ]
    programs += [
        Program(f"consumer-{number}", _member(CONSUMERS_GROUP, "consumer"))
        for number in range(settings.consumer_readers)
    ]
    if settings.group_readers:
        programs.append(Program("loner", _member(LONER_GROUP, "classic")))
    programs += [
        Program(f"transformer-{number}", _transactor(Transformer, f"transform-{number}", 1.5))
        for number in range(settings.transformers)
    ]
    return programs


def auditors(settings: WorkloadSettings) -> list[Program]:
    """The programs that wait until the groups have consumed everything."""
    groups = []
    if settings.group_readers:
        groups += [
            (READERS_GROUP, settings.group_readers, settings.keys),
            (LONER_GROUP, 1, settings.keys),
        ]
    if settings.consumer_readers:
        groups.append((CONSUMERS_GROUP, settings.consumer_readers, settings.keys))
    if settings.transformers:
        groups.append((TRANSFORM_GROUP, settings.transformers, settings.inputs))
    programs = [Program(f"audit of {group[0]}", _audit(*group)) for group in groups]
    if settings.transfers:
        programs.append(Program("audit of stability", audit_stability))
        programs.append(Program("audit of states", audit_states))
    programs += [
        Program(
            f"audit of {topic}",
            lambda actor, topic=topic: RebornTopic(actor, topic).audit(),  # type: ignore[misc]
        )
        for topic in settings.reborn_topics
    ]
    return programs


def with_segments(settings: WorkloadSettings, seed: int, workload: str) -> WorkloadSettings:
    """The settings for runs with segments. Topics lose records, readers without a broker read the
    bucket, and a sink commits beside transactions. The pace is halved, so that there is time to
    delete superfluous objects."""
    has_sink = workload == "transactions"
    return replace(
        settings,
        pause_seconds_mean=2 * settings.pause_seconds_mean,
        policies=policies_of(seed, workload),
        viewers=2,
        inspectors=1,
        sink_drivers=2 if has_sink else 0,
        sunk=SUNK if has_sink else (),
    )


def without_groups(settings: WorkloadSettings) -> WorkloadSettings:
    """The settings for a system without these features."""
    return replace(
        settings, group_readers=0, consumer_readers=0, transfers=0, transformers=0, topic_churns=0
    )


def _consumer(isolation: Isolation) -> ActorProgram:
    return lambda actor: Consumer(actor, isolation).run()


def _member(group: str, protocol: GroupProtocol) -> ActorProgram:
    return lambda actor: GroupReader(actor, group, protocol).run()


def _transactor(
    kind: type[Transactor], transactional_id: str, pause_seconds_mean: float
) -> ActorProgram:
    return lambda actor: kind(actor, transactional_id, pause_seconds_mean).run()


def _audit(group: str, count: int, keys: tuple[Key, ...]) -> ActorProgram:
    return lambda actor: audit_group(actor, group, count, keys)
