"""Applies the metadata records about brokers: registrations, fences, drains, levels (rule B1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tidelog.coordinator.cluster.records.records import (
    ALONE_VERSION,
    FIRST_LEVEL,
    BrokerFenced,
    BrokerRegistered,
    DrainChanged,
    IncarnationsForgotten,
    LeaseResumed,
    LevelRaised,
    ListenersRegistered,
    Record,
)
from tidelog.coordinator.cluster.state.draft import Draft, InvalidRecord
from tidelog.coordinator.cluster.state.incarnations import BROKER_ID_MAX, BrokerInfo
from tidelog.identifiers import Epoch, Incarnation

PORT_MAX = 2**16 - 1
LISTENERS_MAX = 64


def _broker_registered(draft: Draft, record: BrokerRegistered) -> None:
    if not 0 <= record.broker_id <= BROKER_ID_MAX:
        raise InvalidRecord(record, f"broker id {record.broker_id} is not in [0, {BROKER_ID_MAX}]")
    if not 1 <= record.port <= PORT_MAX or record.host == "":
        raise InvalidRecord(record, f"{record.host!r}:{record.port} is not an address")
    if record.session_timeout_ms <= 0:
        raise InvalidRecord(
            record, f"session timeout {record.session_timeout_ms} ms is not above 0"
        )
    if record.version < ALONE_VERSION or record.rack == "":
        raise InvalidRecord(record, f"version {record.version} in rack {record.rack!r}")
    if record.version < draft.level:
        raise InvalidRecord(
            record, f"version {record.version} is below the cluster's level {draft.level}"
        )
    if record.broker_id in draft.live_epochs.view:
        other = draft.live_epochs.view[record.broker_id]
        raise InvalidRecord(record, f"incarnation {record.broker_id}-{other} is not fenced")
    epoch = Epoch(draft.sequence)
    if epoch in draft.brokers.view:
        raise InvalidRecord(record, "its entry already registers a broker")
    info = BrokerInfo(
        incarnation=Incarnation(record.broker_id, epoch),
        host=record.host,
        port=record.port,
        process=record.process,
        session_timeout_ms=record.session_timeout_ms,
        last_entry=draft.sequence,
        rack=record.rack,
        version=record.version,
    )
    draft.brokers.put(epoch, info)
    draft.live_epochs.put(record.broker_id, epoch)


def _listeners_registered(draft: Draft, record: ListenersRegistered) -> None:
    info = draft.brokers.view.get(Epoch(draft.sequence))
    if info is None or info.endpoints:
        raise InvalidRecord(record, "its entry registers no broker before it")
    names = [each.listener for each in record.endpoints]
    if not 1 <= len(set(names)) == len(names) <= LISTENERS_MAX:
        raise InvalidRecord(record, f"{names} are not 1 to {LISTENERS_MAX} different listeners")
    for each in record.endpoints:
        if not each.listener or not 1 <= each.port <= PORT_MAX or each.host == "":
            raise InvalidRecord(record, f"{each} is not an address")
    if (info.host, info.port) not in [(each.host, each.port) for each in record.endpoints]:
        raise InvalidRecord(record, f"no listener has the address {info.host}:{info.port}")
    draft.brokers.put(info.epoch, replace(info, endpoints=record.endpoints))


def _lease_resumed(draft: Draft, record: LeaseResumed) -> None:
    if record.epoch != draft.author:
        raise InvalidRecord(record, f"{draft.author} cannot speak for epoch {record.epoch}")


def _broker_fenced(draft: Draft, record: BrokerFenced) -> None:
    incarnation = draft.live(record.epoch, record)
    if record.durable_end < 0:
        raise InvalidRecord(record, f"{record.durable_end} slots cannot be durable")
    info = draft.brokers.view[record.epoch]
    fenced = replace(info, fenced=True, durable_end=record.durable_end, draining=False)
    draft.brokers.put(record.epoch, fenced)
    draft.live_epochs.drop(incarnation.broker_id)


def _drain_changed(draft: Draft, record: DrainChanged) -> None:
    incarnation = draft.live(record.epoch, record)
    info = draft.brokers.view[record.epoch]
    if info.draining == record.draining:
        state = "drained already" if info.draining else "not being drained"
        raise InvalidRecord(record, f"incarnation {incarnation} is {state}")
    if record.draining and not any(
        epoch != record.epoch and not draft.brokers.view[epoch].draining
        for epoch in draft.live_epochs.view.values()
    ):
        raise InvalidRecord(record, f"only incarnation {incarnation} can take partitions")
    draft.brokers.put(record.epoch, replace(info, draining=record.draining))


def _level_raised(draft: Draft, record: LevelRaised) -> None:
    if record.level <= max(draft.level, FIRST_LEVEL):
        raise InvalidRecord(
            record, f"level {record.level} is not above {max(draft.level, FIRST_LEVEL)}"
        )
    for epoch in draft.live_epochs.view.values():
        info = draft.brokers.view[epoch]
        if info.version < record.level:
            raise InvalidRecord(
                record, f"incarnation {info.incarnation} has version {info.version}"
            )
    draft.level = record.level


def _incarnations_forgotten(draft: Draft, record: IncarnationsForgotten) -> None:
    named = {
        tenure.incarnation.epoch
        for topic in draft.topics.view.values()
        for tenures in set(topic.partitions)
        for tenure in tenures
    }
    for epoch in record.epochs:
        if epoch not in draft.retired.view:
            raise InvalidRecord(record, f"epoch {epoch} is not that of a retired incarnation")
        if epoch in named:
            raise InvalidRecord(record, f"a partition's tenures name epoch {epoch}")
        draft.retired.drop(epoch)


BROKER_TRANSITIONS: Mapping[type[Record], Callable[[Draft, Any], None]] = {
    BrokerRegistered: _broker_registered,
    ListenersRegistered: _listeners_registered,
    LeaseResumed: _lease_resumed,
    BrokerFenced: _broker_fenced,
    DrainChanged: _drain_changed,
    LevelRaised: _level_raised,
    IncarnationsForgotten: _incarnations_forgotten,
}
