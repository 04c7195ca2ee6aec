"""The marks of one broker id's collections, kept from process to process.

`cluster/collection/<broker id>.json` holds three kinds of marks with the time for which each was
observed: unreachable objects, ids without objects in the bucket, and the snapshots of the metadata
log. A starting process reads it and continues from these ages. Only time that a process has
observed counts: no clock of the store, of a machine or of another process matters.

Each pass writes the file anew, without a condition. Its content was true when written and stays
true (rule F2). So an old process that writes late does no harm: later observations are made again.
The same holds if the file is lost or unreadable. The file alone deletes nothing: each pass judges
anew and removes marks that it does not confirm.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tidelog.broker.collect.marks import Marks, SlotMarks
from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.prefix import COLLECTION_PREFIX
from tidelog.coordinator.cluster.records.documents import decode_document, encode_document
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import BrokerId, Epoch, Incarnation
from tidelog.storage.object_store import Buffer, ObjectNotFound, ObjectStore
from tidelog.storage.sightings import Sightings
from tidelog.wal.recover.slot_runs import SlotRun
from tidelog.workers.offload import Offload

logger = logging.getLogger(__name__)

MAGIC: Final = "tidelog.collection"
FORMAT_VERSION: Final = 1
_SNAPSHOTS: Final = "snapshots"
_INCARNATION = re.compile(r"(\d{1,10})-(\d{1,19})")

Ages = Mapping[str, Mapping[str, float]]
"""Ages of marked keys, by the kind of mark."""
SlotAges = Mapping[Incarnation, Sequence[tuple[SlotRun, float]]]


def mark_key(broker_id: BrokerId) -> str:
    """The key of a broker id's mark file."""
    return f"{COLLECTION_PREFIX}{broker_id}.json"


class MarkFile:
    """All marks of one process, and their file."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        offload: Offload,
        broker_id: BrokerId,
        grace_seconds: float,
        snapshots: Sightings[str] | None = None,
    ) -> None:
        """`snapshots`: how long the process has seen each snapshot of the metadata log."""
        self._store = store
        self._clock = clock
        self._offload = offload
        self._key = mark_key(broker_id)
        self._grace_seconds = grace_seconds
        self.slots = SlotMarks(grace_seconds)
        self.objects: Marks[str] = Marks(grace_seconds)
        """Objects outside of tables, except slots."""
        self.segments: Marks[str] = Marks(grace_seconds)
        """Objects in tables' folders that no table lists."""
        self.uncommitted: Marks[str] = Marks(grace_seconds)
        """Segments that may still be committed."""
        self.forgotten: Marks[str] = Marks(grace_seconds)
        """Ids without objects in the bucket."""
        self._snapshots = Sightings() if snapshots is None else snapshots
        self._is_empty = True

    async def load(self) -> None:
        """Continue from the file, if it exists and is readable. Raises StoreError."""
        try:
            stored = await self._store.get(self._key)
        except ObjectNotFound:
            return
        self._is_empty = False
        try:
            slots, ages = await self._offload.run(decode_marks, self._key, stored.data)
        except (CorruptObject, UnsupportedFormat) as error:
            logger.warning(
                "the previous process's marks are unreadable: unneeded objects stay"
                " for the grace once more",
                extra={"key": self._key, "why": str(error)},
            )
            return
        now = self._clock.monotonic()
        self.slots.restore(slots, now)
        for name, marks in self._by_name.items():
            marks.restore(ages.get(name, {}), now)
        self._snapshots.restore(ages.get(_SNAPSHOTS, {}), now)

    async def store(self, waiting: Mapping[Incarnation, Sequence[SlotRun]]) -> None:
        """Write the file, unless it and the marks are both empty.

        `waiting`: slots in the deleter's queue, beside the marked ones. Raises StoreError.
        """
        now = self._clock.monotonic()
        slots = self.slots.ages(now)
        for owner, runs in waiting.items():
            # These slots have been marked for longer than the grace.
            due = [(run, self._grace_seconds + 1) for run in runs]
            slots[owner] = sorted([*slots.get(owner, ()), *due])
        ages = {name: marks.ages(now) for name, marks in self._by_name.items() if len(marks)}
        snapshots = self._snapshots.ages(now)
        if snapshots:
            ages[_SNAPSHOTS] = snapshots
        is_empty = not slots and not ages
        if is_empty and self._is_empty:
            return
        data = await self._offload.run(encode_marks, slots, ages)
        await self._store.put(self._key, data)
        self._is_empty = is_empty

    @property
    def _by_name(self) -> Mapping[str, Marks[str]]:
        return {
            "objects": self.objects,
            "segments": self.segments,
            "uncommitted": self.uncommitted,
            "forgotten": self.forgotten,
        }


def encode_marks(slots: SlotAges, ages: Ages) -> bytes:
    """The file's bytes. Ages are whole milliseconds, rounded down."""
    return encode_document(
        MAGIC,
        FORMAT_VERSION,
        {
            "slots": {
                str(owner): [[run.first, run.end, _ms(age)] for run, age in runs]
                for owner, runs in slots.items()
            },
            "keys": {name: _by_age(marked.items()) for name, marked in ages.items()},
        },
    )


def decode_marks(
    key: str, data: Buffer
) -> tuple[dict[Incarnation, list[tuple[SlotRun, float]]], dict[str, dict[str, float]]]:
    """The file's marks. Raises CorruptObject and UnsupportedFormat."""
    body: dict[str, Any] = dict(decode_document(key, data, MAGIC, FORMAT_VERSION))
    try:
        slots = {
            _incarnation(owner): [
                (SlotRun(int(first), int(end)), int(age_ms) / 1000) for first, end, age_ms in runs
            ]
            for owner, runs in body["slots"].items()
        }
        ages = {
            name: {each: int(age_ms) / 1000 for age_ms, keys in marked for each in keys}
            for name, marked in body["keys"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptObject(key, f"its marks cannot be decoded: {error}") from error
    return slots, ages


def _by_age(marked: Iterable[tuple[str, float]]) -> list[list[Any]]:
    """Keys grouped by age: those of one pass lie together."""
    groups: dict[int, list[str]] = {}
    for key, age in marked:
        groups.setdefault(_ms(age), []).append(key)
    return [[age_ms, keys] for age_ms, keys in groups.items()]


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _incarnation(text: str) -> Incarnation:
    found = _INCARNATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no incarnation")
    return Incarnation(BrokerId(int(found[1])), Epoch(int(found[2])))
