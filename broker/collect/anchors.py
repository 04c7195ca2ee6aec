"""Reads the newest checkpoints and hand-over images, which say which objects are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from tidelog.bucket.object_keys import CHECKPOINT_FOLDER, CheckpointObject, parse_key
from tidelog.bucket.reachability import Anchor
from tidelog.concurrency import read_all
from tidelog.errors import MissingObject
from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import ObjectNotFound, ObjectStore
from tidelog.wal.format.image_codec import Images
from tidelog.wal.write.checkpoint import checkpoint_key, decode_checkpoint
from tidelog.workers.offload import Offload

READS_AT_ONCE_MAX = 16


class AnchorReader:
    """Caches the last anchors by key and etag: most of them do not change."""

    def __init__(self, store: ObjectStore, offload: Offload) -> None:
        self._store = store
        self._offload = offload
        self._checkpoints: dict[tuple[str, str], Anchor] = {}
        self._handovers: dict[tuple[str, str], Anchor] = {}

    async def checkpoints(
        self, incarnations: Iterable[Incarnation]
    ) -> dict[Incarnation, Anchor] | None:
        """The newest checkpoint of each of these incarnations that has one.

        None if a checkpoint was replaced during the read. Raises StoreError, CorruptObject and
        UnsupportedFormat, as `handovers` does.
        """
        newest: dict[Incarnation, tuple[Slot, str]] = {}
        async for meta in self._store.list(CHECKPOINT_FOLDER):
            parsed = parse_key(meta.key)
            if isinstance(parsed, CheckpointObject):
                newest[parsed.incarnation] = parsed.slot, meta.etag
        owners = [owner for owner in incarnations if owner in newest]
        wanted = [(checkpoint_key(owner, newest[owner][0]), newest[owner][1]) for owner in owners]
        found = await self._read_all(wanted, self._checkpoints, _decode_checkpoint)
        anchors = [anchor for anchor in found if anchor is not None]
        if len(anchors) < len(found):
            return None
        self._checkpoints = dict(zip(wanted, anchors, strict=True))
        return dict(zip(owners, anchors, strict=True))

    async def handovers(self, keys: Iterable[str]) -> frozenset[str]:
        """The objects that these hand-over images refer to.

        Raises MissingObject for an image that is gone: a later state must not name it (F3).
        """
        wanted = [(key, "") for key in sorted(keys)]
        found = await self._read_all(wanted, self._handovers, _decode_images)
        images = []
        for (key, _), image in zip(wanted, found, strict=True):
            if image is None:
                raise MissingObject(key, "it is missing: a tenure names it as a base")
            images.append(image)
        self._handovers = dict(zip(wanted, images, strict=True))
        return frozenset[str]().union(*(image.objects for image in images))

    async def _read_all(
        self,
        wanted: list[tuple[str, str]],
        known: Mapping[tuple[str, str], Anchor],
        decode: Callable[[str, bytes], Anchor],
    ) -> list[Anchor | None]:
        """The anchors in these objects; None for an object that is gone."""

        async def read(place: tuple[str, str]) -> Anchor | None:
            if place in known:
                return known[place]
            try:
                stored = await self._store.get(place[0])
            except ObjectNotFound:
                return None
            return await self._offload.run(decode, place[0], bytes(stored.data))

        return await read_all(read, wanted, asyncio.Semaphore(READS_AT_ONCE_MAX))


def _decode_checkpoint(key: str, data: bytes) -> Anchor:
    checkpoint = decode_checkpoint(key, data)
    return Anchor.of(checkpoint.slot, checkpoint.images)


def _decode_images(key: str, data: bytes) -> Anchor:
    return Anchor.of(Slot(0), Images(key, data))
