"""Decides which objects a copy needs, and the state of its cluster. Pure.

The copier reads in this order, so that each later reading covers the references of earlier ones:

1. bases: the metadata log, the newest checkpoints and the named hand-over objects;
2. tables and state snapshots. They are not older than the bases (G1, H6). All of their content was
   decided and durable when the copier read them;
3. the instant (`ends`). So the logs have the decisions behind all content of tables and snapshots;
4. the listings of merged and staged objects. An entry below the instant names no later object.

The bases are older than the instant. Replay completes them: the copy needs all slots from a base to
the end of its WAL. A partition may have changed its owner between 1 and 3. Its new base is then an
opening image in a slot. The extents of that image are those of the previous base, or lie in slots
that the former owner wrote since. So the copy has all WALs that were needed at 1 or at 3, and those
of incarnations that came between.

A collector may have deleted an object meanwhile. Then something newer took its place (F4), and the
copier begins again at 1. An object that is missing in two rounds is lost.

These objects are not copied:

| Object | Reason |
|---|---|
| leases | no broker of the copy has one. They name slots and entries behind the instant |
| metadata entries but 0, and older snapshots | one snapshot replaces them |
| marks and survey of collections | they name objects that the copy may not have |
| superfluous objects | the collector would delete them |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tidelog.bucket.copy.ends import Instant
from tidelog.bucket.object_keys import StateObject, TableObject, parse_key
from tidelog.bucket.reachability import Anchor, named_handovers, needed_incarnations
from tidelog.coordinator.cluster.records.records import BrokerFenced
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import FIRST_SLOT, Incarnation, Slot
from tidelog.storage.object_store import Buffer
from tidelog.storage.segment.segment import TOPICS_PREFIX
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.storage.table.table_log import LOG_FOLDER, hint_key
from tidelog.wal.format.object_format import wal_key
from tidelog.wal.log.adoption import object_key


class Bases(NamedTuple):
    """The bases of all partitions, as of the first reading of a round."""

    state: ClusterState
    anchors: Mapping[Incarnation, Anchor]
    """The anchors in the newest checkpoints of all needed incarnations."""
    handover_objects: frozenset[str]
    """The objects that the named hand-over images refer to."""
    read: Mapping[str, Buffer]
    """The bytes of checkpoints and hand-over objects: a broker may replace a checkpoint later."""


class TablesToCopy(NamedTuple):
    """Tables and state snapshots, as of the second reading of a round."""

    segments: Mapping[str, int]
    """The listed segments, with the checksums of the whole objects."""
    others: Sequence[str]
    """Commits, checkpoints of tables, and the newest state snapshots."""
    hints: Mapping[str, Buffer]
    """The pointers to the tables' newest checkpoints, which writers replace."""


class Needed(NamedTuple):
    """The objects of one round besides tables."""

    keys: Sequence[str]
    seals: Sequence[str]
    """Objects that are copied if present: no acknowledged record depends on them."""


def is_followed_by(bases: Bases, instant: Instant) -> bool:
    """Whether the bases have all hand-over objects that the instant's state names."""
    return named_handovers(instant.state) <= bases.read.keys()


class CopiedTableLog(NamedTuple):
    """The copy's part of one table's log, from earlier runs."""

    keys: Sequence[str]
    """Commits and checkpoints, ascending."""
    is_ahead: bool
    """Whether the copy has versions above the original's last one, or checkpoints above the named
    one."""
    newest_common: str | None
    """The newest of the objects that the copy needs."""


def copied_table_logs(tables: TablesToCopy, present: Iterable[str]) -> list[CopiedTableLog]:
    """The table logs of which the copy has a part. `present`: the keys in the copy."""
    wanted = frozenset(tables.others)
    held, first = _by_table(present), _by_table(wanted)
    found = []
    for folder, keys in held.items():
        # All versions above the named checkpoint are needed.
        base = min(map(_version_of, first.get(folder, ())), default="")
        found.append(
            CopiedTableLog(
                sorted(keys),
                any(_version_of(key) > base for key in keys if key not in wanted),
                max((key for key in keys if key in wanted), default=None),
            )
        )
    return found


def snapshots_ahead(tables: TablesToCopy, present: Iterable[str]) -> list[str]:
    """The copy's state snapshots above the original's newest one. `present`: the keys in the copy.

    A repair of the original has deleted them since. A broker of the copy would take the highest.
    """
    newest: dict[tuple[str, int], int] = {}
    for each in map(parse_key, tables.others):
        if isinstance(each, StateObject):
            newest[each.topic, each.partition] = each.next_offset
    return [
        key
        for key in present
        if isinstance(each := parse_key(key), StateObject)
        and each.next_offset > newest.get((each.topic, each.partition), -1)
    ]


def hints_given_up(tables: TablesToCopy, present: Iterable[str]) -> list[str]:
    """The copy's hints of tables that have none in the original. `present`: the keys in the copy.

    A repair that found no readable checkpoint has deleted them since.
    """
    return [
        key
        for key in present
        if isinstance(each := parse_key(key), TableObject)
        and key == hint_key(each.topic_id)
        and key not in tables.hints
    ]


def _by_table(keys: Iterable[str]) -> dict[str, list[str]]:
    """Commits and checkpoints, by the folder of their table."""
    found: dict[str, list[str]] = {}
    for key in keys:
        folder, is_log, _ = key.partition(f"/{LOG_FOLDER}")
        if is_log and folder.startswith(TOPICS_PREFIX) and _version_of(key).isdigit():
            found.setdefault(folder, []).append(key)
    return found


def _version_of(key: str) -> str:
    return key.rpartition("/")[2][:NUMBER_DIGITS]


def needed(bases: Bases, instant: Instant, loose: Iterable[str]) -> Needed:
    """The objects that the copy needs. `loose`: the listed merged and staged objects."""
    state = instant.state
    given_up = state.given_up
    found: dict[str, None] = {}
    for owner, end in _wals(bases, instant):
        floor = bases.anchors[owner].slot if owner in bases.anchors else FIRST_SLOT
        damaged = _damaged(state, owner)
        for slot in range(floor, end):
            if slot not in damaged:
                found[wal_key(owner, Slot(slot))] = None
    for anchor in bases.anchors.values():
        found |= dict.fromkeys(map(object_key, anchor.objects))
    found |= dict.fromkeys(map(object_key, bases.handover_objects))
    found |= dict.fromkeys(loose)
    if state.credentials is not None:
        found[state.credentials] = None
    seals = [wal_key(wal.incarnation, wal.end_slot) for wal in state.retired.values()]
    return Needed([key for key in found if key not in given_up], seals)


def copied_state(instant: Instant) -> ClusterState:
    """The state of the copy's metadata log: all brokers of the original are fenced.

    So a broker of the copy waits for no lease, and asks no broker of the original for anything. It
    takes over each WAL up to the instant. Each fence names that end, so a slot that the copy loses
    is noticed as damage (C10).
    """
    state = instant.state
    for info in state.live_brokers():
        fence = BrokerFenced(info.epoch, instant.ends[info.incarnation])
        state = state.extended(info.epoch, (fence,))
    return state


def _wals(bases: Bases, instant: Instant) -> Iterator[tuple[Incarnation, Slot]]:
    """The incarnations whose slots are needed, each with the end of its WAL.

    A forgotten one has left nothing.
    """
    state = instant.state
    came = [wal.incarnation for epoch, wal in state.retired.items() if epoch > bases.state.sequence]
    for owner in {*needed_incarnations(bases.state), *needed_incarnations(state), *came}:
        if owner in instant.ends:
            yield owner, instant.ends[owner]
        elif owner.epoch in state.retired:
            yield owner, state.retired[owner.epoch].end_slot


def _damaged(state: ClusterState, owner: Incarnation) -> frozenset[int]:
    """The slots that were lost before the WAL was retired."""
    wal = state.retired.get(owner.epoch)
    if wal is None:
        return frozenset()
    return frozenset(slot for lost in wal.damaged for slot in range(lost.first, lost.last + 1))
