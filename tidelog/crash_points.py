"""Where tests let the process die: named moments between two steps of which only one is durable.

A shell calls `hit` at such a moment. In production nothing happens there; a test injects an object
that counts the hits and ends the process at one of them.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol


class CrashPoint(Enum):
    """The moments, by the names that tests give them."""

    SLOT_UPLOAD = "slot upload"
    """The put of a WAL slot is about to be sent."""
    PREPARE_DURABLE = "prepare durable"
    """A transaction is decided; none of its markers is written."""
    BETWEEN_MARKERS = "between markers"
    """One of a transaction's markers is durable, and another is not yet."""
    MARKERS_DURABLE = "markers durable"
    """All of a transaction's markers are durable; its completion is not written."""
    SNAPSHOT_CAPTURED = "snapshot captured"
    """A coordinator's state is held and durable in the log; nothing of its snapshot is stored."""
    SNAPSHOT_WRITTEN = "snapshot written"
    """A coordinator's snapshot is stored; nobody has drawn any consequence from that."""
    SEGMENT_READY = "segment ready"
    """A segment lies in memory; nothing of it is stored."""
    SEGMENT_STORED = "segment stored"
    """A segment is stored; no table lists it."""
    TABLE_COMMIT = "table commit"
    """A change of a table is about to be committed."""
    TABLE_COMMITTED = "table committed"
    """A change of a table is durable; nobody has drawn any consequence from that."""
    TABLE_CHECKPOINT_STORED = "table checkpoint stored"
    """A table's checkpoint is stored; nothing points to it."""
    TABLE_CHECKPOINTED = "table checkpointed"
    """A table's checkpoint is stored and pointed to; nothing that it makes needless is deleted."""
    TABLE_ENTRY_NEEDLESS = "table entry needless"
    """A version or checkpoint of a table is about to be deleted: a checkpoint stands for it."""
    TABLE_FENCED = "table fenced"
    """An empty version keeps late segments out of a table; they are not deleted yet."""
    LOG_START_MOVED = "log start moved"
    """A log begins later; the segments below are in the table still."""
    SEGMENTS_REWRITTEN = "segments rewritten"
    """What is to take the place of segments is stored; no table lists it."""
    SEGMENTS_REPLACED = "segments replaced"
    """Segments were removed from a table, or others took their place; nothing followed yet."""
    CHECKPOINT_WRITTEN = "checkpoint written"
    """A checkpoint of a WAL is stored; nobody has drawn any consequence from that."""
    MERGED_STORED = "merged stored"
    """A merged object is stored; no WAL names it."""
    MERGED_NAMED = "merged named"
    """A WAL names a merged object; no checkpoint refers to it."""
    SINK_STAGED = "sink staged"
    """What a sink's task has staged is stored; its driver does not know of it."""
    SINK_FENCED = "sink fenced"
    """A commit call has fenced those before it; it has not looked whether its batch is done."""
    SINK_ADOPTED = "sink adopted"
    """All that a batch has staged is adopted; the batch's number is not in the transaction."""
    SINK_NUMBERED = "sink numbered"
    """A batch is whole in its transaction, with its number; the end is not asked for."""
    SINK_COMMITTED = "sink committed"
    """A batch is committed; whoever asked for that does not know."""
    SINK_FOUND = "sink found"
    """A batch was found to be committed before; whoever asked for it again does not know."""

    COLLECTED_OBJECT = "collected object"
    """An object, of a table or not, is about to be deleted, since nobody can need it any more."""
    COLLECTED_SEGMENT = "collected segment"
    """The same, and it is a segment."""


class CrashPoints(Protocol):
    """Told of each such moment."""

    def hit(self, point: CrashPoint) -> None:
        """The moment has come. May not return."""
        ...


class NoCrashPoints:
    """Nothing happens."""

    def hit(self, point: CrashPoint) -> None:
        return


NO_CRASH_POINTS: Final[CrashPoints] = NoCrashPoints()
