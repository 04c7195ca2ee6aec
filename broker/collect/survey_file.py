"""The survey of all bases, which one broker makes and the others use.

To judge its own WAL a broker needs the references in all other brokers' checkpoints. If each of N
brokers read all of them, a pass would cost N * N reads. So the broker that is responsible for the
folders writes these references to `cluster/collection/survey.json`, and the others read that file.

If the survey does not change for some passes, a broker that waits for it reads the checkpoints
itself, and writes the survey for all. The passes that it waits for grow with its rank, so one
broker does so at a time.

The effects of failures:

- The writer dies before or after the put: the others use the old or the new survey.
- Two write at the same time, or a stalled one writes late: each survey was true when it was made,
  and an object that it lets go may go for ever (F2). With the older one less is deleted.
- The survey is missing or unreadable: the brokers make one themselves.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from tidelog.bucket.survey import Survey, WalReferences
from tidelog.coordinator.cluster.log.prefix import COLLECTION_PREFIX
from tidelog.coordinator.cluster.records.codec import Mismatch, from_json, to_json
from tidelog.coordinator.cluster.records.documents import decode_document, encode_document
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import BrokerId, Epoch, Incarnation, MetadataStamp, Slot
from tidelog.storage.object_store import Buffer, ObjectNotFound, ObjectStore
from tidelog.wal.recover.slot_runs import SlotRun
from tidelog.workers.offload import Offload

SURVEY_KEY: Final = f"{COLLECTION_PREFIX}survey.json"
MAGIC: Final = "tidelog.survey"
FORMAT_VERSION: Final = 1

logger = logging.getLogger(__name__)


class SurveyFile:
    """One process's view of the survey."""

    def __init__(self, store: ObjectStore, offload: Offload) -> None:
        self._store = store
        self._offload = offload
        self._etag: str | None = None
        self.survey: Survey | None = None
        """The survey as of the last look."""
        self.unchanged = 0
        """The looks in a row that found the survey of the look before, or none."""

    async def look(self) -> None:
        """Read the survey. Raises StoreError."""
        try:
            stored = await self._store.get(SURVEY_KEY)
        except ObjectNotFound:
            self.survey, self._etag = None, None
            self.unchanged += 1
            return
        if stored.etag == self._etag:
            self.unchanged += 1
            return
        self._etag = stored.etag
        try:
            self.survey = await self._offload.run(decode_survey, SURVEY_KEY, bytes(stored.data))
            self.unchanged = 0
        except (CorruptObject, UnsupportedFormat) as error:
            logger.warning(
                "the survey of all bases is unreadable; the brokers make another one",
                extra={"key": SURVEY_KEY, "why": str(error)},
            )
            self.survey = None
            self.unchanged += 1

    async def write(self, survey: Survey) -> None:
        """Store a survey for the others. Raises StoreError."""
        data = await self._offload.run(encode_survey, survey)
        self._etag = await self._store.put(SURVEY_KEY, data)
        self.survey = survey
        self.unchanged = 0


@dataclass(frozen=True, slots=True)
class _Wal:
    broker_id: BrokerId
    epoch: Epoch
    needed: bool
    floor: Slot
    slots: tuple[tuple[int, ...], ...]
    merged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Body:
    sequence: int
    checksum: int
    wals: tuple[_Wal, ...]


def encode_survey(survey: Survey) -> bytes:
    """The object's bytes."""
    wals = tuple(
        [
            _Wal(
                owner.broker_id,
                owner.epoch,
                wal.is_needed,
                wal.floor,
                tuple([(run.first, run.end) for run in wal.slots]),
                tuple(sorted(wal.merged)),
            )
            for owner, wal in survey.wals.items()
        ]
    )
    stamp = survey.stamp
    return encode_document(
        MAGIC, FORMAT_VERSION, to_json(_Body(stamp.sequence, stamp.checksum, wals))
    )


def decode_survey(key: str, data: Buffer) -> Survey:
    """The survey. Raises CorruptObject and UnsupportedFormat."""
    try:
        body = from_json(_Body, decode_document(key, data, MAGIC, FORMAT_VERSION))
        stamp = MetadataStamp(body.sequence, body.checksum)
        return Survey(stamp, dict(map(_decoded, body.wals)))
    except Mismatch as error:
        raise CorruptObject(key, str(error)) from error


def _decoded(wal: _Wal) -> tuple[Incarnation, WalReferences]:
    runs = []
    following = 0
    for each in wal.slots:
        if len(each) != 2 or not following <= each[0] < each[1]:
            raise Mismatch(f"{each} is no run of slots behind {following}")
        runs.append(SlotRun(*each))
        following = each[1]
    owner = Incarnation(wal.broker_id, wal.epoch)
    return owner, WalReferences(wal.needed, wal.floor, tuple(runs), frozenset(wal.merged))
