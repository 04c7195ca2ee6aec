"""Divides the collector's work among the live brokers. Pure.

Each broker collects its own WAL. All other work is cut into pieces: the WALs of dead incarnations
one by one, the folders that belong to no WAL, the tables, the ids that the metadata log may forget.
A broker ranks for each piece by a hash of the piece and its id, and the first in rank does it. So a
broker that comes or goes moves few pieces, and each id has the same pieces after a restart: the
marks of its mark file go on.

The effects of failures:

- Two brokers believe to be responsible for a piece, since one has an older state: both mark and
  delete the same objects, which may go for ever (F2). A second deletion of a key does nothing.
- The responsible broker dies, or dies in the midst of a piece: it is fenced, and the next in rank
  begins with the piece. It observes for the whole grace itself, so less is deleted, never more.
- The responsible broker lives and fails in each pass: its piece waits. Its metric of failures and
  its log tell. All other pieces go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, Incarnation

PATIENCE_MAX: Final = 3
"""Passes for which the last in rank wait for a survey of another broker."""


class SharedWork(StrEnum):
    """Work that one broker does for all."""

    FOLDERS = "folders"
    """Objects of no WAL and no table: images, staged batches, snapshots, verifiers, probes. And the
    survey of all bases."""
    TABLES = "tables"
    FORGETTING = "forgetting"


def is_responsible(state: ClusterState, me: Incarnation, piece: str) -> bool:
    """Whether this incarnation is live and the first in rank for a piece."""
    return _is_live(state, me) and rank(state, me.broker_id, piece) == 0


def rank(state: ClusterState, broker_id: BrokerId, piece: str) -> int:
    """The number of live brokers that come before this one."""
    mine = _weight(broker_id, piece)
    return sum(_weight(each, piece) > mine for each in state.live_epochs)


def dead_wals(state: ClusterState, me: Incarnation) -> Iterator[Incarnation]:
    """The fenced and retired incarnations whose WALs this one collects."""
    owners = [info.incarnation for info in state.fenced_not_retired()]
    owners += [wal.incarnation for wal in state.retired.values()]
    return (owner for owner in owners if is_responsible(state, me, f"wal {owner}"))


def passes_to_wait(state: ClusterState, me: Incarnation) -> int:
    """For how many passes this incarnation waits for another broker's survey."""
    return min(rank(state, me.broker_id, SharedWork.FOLDERS), PATIENCE_MAX)


def _is_live(state: ClusterState, me: Incarnation) -> bool:
    return state.live_epochs.get(me.broker_id) == me.epoch


def _weight(broker_id: BrokerId, piece: str) -> tuple[bytes, int]:
    return blake2b(f"{piece} {broker_id}".encode(), digest_size=8).digest(), broker_id
