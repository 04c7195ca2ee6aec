"""Reads the indexes of WAL objects and merged objects, from the objects' ends."""

from __future__ import annotations

from tidelog.errors import CorruptObject
from tidelog.storage.object_store import Buffer, ByteRange, ObjectStore, Suffix
from tidelog.storage.superseded import required
from tidelog.wal.format.object_format import TAIL_READ_BYTES, ObjectHeader
from tidelog.wal.format.slot_index import SlotIndex, decode_tail, tail_bytes
from tidelog.workers.offload import Offload


async def read_index(store: ObjectStore, offload: Offload, key: str) -> SlotIndex | ObjectHeader:
    """The index of a slot, from the end of its object; the header of a seal.

    Raises ObjectNotFound and other StoreErrors, CorruptObject and UnsupportedFormat.
    """
    tail, size = await _read_tail(store, key)
    if len(tail) <= TAIL_READ_BYTES:
        return decode_tail(key, tail, size)
    return await offload.run(decode_tail, key, tail, size)


async def read_batch_index(
    store: ObjectStore, offload: Offload, key: str, whole: Buffer | None = None
) -> SlotIndex:
    """The index of an object with batches. `whole`: the object, if it is in memory.

    Raises MissingObject and other CorruptObjects, StoreError and UnsupportedFormat.
    """
    if whole is not None:
        return batch_index(key, whole, len(whole))
    with required():
        return _with_batches(key, await read_index(store, offload, key))


async def read_batch_tail(store: ObjectStore, key: str) -> tuple[Buffer, int]:
    """The end of an object, which a worker decodes with `batch_index`, and the object's size.

    Raises as `read_batch_index` does.
    """
    with required():
        return await _read_tail(store, key)


def batch_index(key: str, tail: Buffer, size: int) -> SlotIndex:
    """The index of an object with batches, from its end.

    Raises CorruptObject and UnsupportedFormat.
    """
    return _with_batches(key, decode_tail(key, tail, size))


def _with_batches(key: str, found: SlotIndex | ObjectHeader) -> SlotIndex:
    if not isinstance(found, SlotIndex):
        raise CorruptObject(key, "it is a seal, and batches are to lie in it")
    return found


async def _read_tail(store: ObjectStore, key: str) -> tuple[Buffer, int]:
    """The end of an object with all of its index, and the object's size."""
    stored = await store.get(key, Suffix(TAIL_READ_BYTES))
    tail, size = stored.data, stored.size
    needed = tail_bytes(key, tail, size)
    if needed > len(tail):
        rest = ByteRange(size - needed, needed - len(tail))
        tail = b"".join(((await store.get(key, rest)).data, tail))
    return tail, size
