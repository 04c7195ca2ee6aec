"""Crash points: named moments between two steps, at which tests end the process.

A shell calls `hit` at such a moment. In production the call does nothing. A test injects an object
that counts the hits and ends the process at one of them.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol


class CrashPoint(Enum):
    """The crash points, by the names in tests."""

    SLOT_UPLOAD = "slot upload"
    """The PUT of a WAL slot is about to be sent."""
    PREPARE_DURABLE = "prepare durable"
    """A transaction's outcome is decided; none of its markers is written."""
    BETWEEN_MARKERS = "between markers"
    """One of a transaction's markers is durable, and another is not yet."""
    MARKERS_DURABLE = "markers durable"
    """All of a transaction's markers are durable; its completion is not written."""
    SNAPSHOT_CAPTURED = "snapshot captured"
    """A coordinator's state is durable in the log; its snapshot is not stored."""
    SNAPSHOT_WRITTEN = "snapshot written"
    """A coordinator's snapshot is stored; the coordinator has not used it yet."""
    SEGMENT_READY = "segment ready"
    """A segment is in memory; no part of it is stored."""
    SEGMENT_STORED = "segment stored"
    """A segment is stored; no table lists it."""
    TABLE_COMMIT = "table commit"
    """A change of a table is about to be committed."""
    TABLE_COMMITTED = "table committed"
    """A change of a table is durable; the broker has not applied its effects yet."""
    TABLE_CHECKPOINT_STORED = "table checkpoint stored"
    """A table's checkpoint is stored; no pointer refers to it."""
    TABLE_CHECKPOINTED = "table checkpointed"
    """A table's checkpoint is stored and referenced; obsolete versions are not deleted yet."""
    TABLE_ENTRY_NEEDLESS = "table entry needless"
    """A table's version or checkpoint is about to be deleted; a newer checkpoint replaces it."""
    TABLE_FENCED = "table fenced"
    """An empty version keeps late segments out of a table; they are not deleted yet."""
    LOG_START_MOVED = "log start moved"
    """A log start is higher; the table still lists the segments below it."""
    SEGMENTS_REWRITTEN = "segments rewritten"
    """Replacement segments are stored; no table lists them."""
    SEGMENTS_REPLACED = "segments replaced"
    """Segments were removed from a table or replaced; the objects are not deleted yet."""
    CHECKPOINT_WRITTEN = "checkpoint written"
    """A checkpoint of a WAL is stored; the broker has not used it yet."""
    MERGED_STORED = "merged stored"
    """A merged object is stored; no WAL refers to it."""
    MERGED_NAMED = "merged named"
    """A WAL refers to a merged object; no checkpoint does."""
    SINK_STAGED = "sink staged"
    """A sink's task has stored its staged object; its driver does not know of it."""
    SINK_FENCED = "sink fenced"
    """A commit call has fenced earlier ones; it has not checked if its batch is committed."""
    SINK_ADOPTED = "sink adopted"
    """A batch's staged objects are adopted; the batch's number is not in the transaction."""
    SINK_NUMBERED = "sink numbered"
    """A batch and its number are complete in the transaction; the commit is not requested."""
    SINK_COMMITTED = "sink committed"
    """A batch is committed; the caller has no answer."""
    SINK_FOUND = "sink found"
    """A retried batch was found committed; the caller has no answer."""

    COLLECTED_OBJECT = "collected object"
    """An unreachable object, of a table or not, is about to be deleted."""
    COLLECTED_SEGMENT = "collected segment"
    """An unreachable segment is about to be deleted."""


class CrashPoints(Protocol):
    """Gets each crash point."""

    def hit(self, point: CrashPoint) -> None:
        """Reach a crash point. May not return."""
        ...


class NoCrashPoints:
    """Ignores all crash points."""

    def hit(self, point: CrashPoint) -> None:
        return


NO_CRASH_POINTS: Final[CrashPoints] = NoCrashPoints()
