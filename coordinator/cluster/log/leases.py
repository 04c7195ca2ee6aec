"""Leases: the objects that prove that brokers live, and their observation by others (B2)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from tidelog.coordinator.cluster.log.prefix import LEASE_PREFIX
from tidelog.coordinator.cluster.records.codec import Mismatch, from_json, to_json
from tidelog.coordinator.cluster.records.documents import decode_document, encode_document
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.errors import CorruptObject
from tidelog.identifiers import FIRST_SLOT, BrokerId, Epoch, MetadataStamp, Slot
from tidelog.storage.object_store import (
    Buffer,
    ObjectNotFound,
    ObjectStore,
)

LEASE_SUFFIX = ".json"
LEASE_MAGIC = "tidelog.lease"
LEASE_FORMAT = 2
"""The newest format: a lease carries stamps."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WalProgress:
    """The progress of an incarnation's WAL."""

    durable_end: Slot
    """The slots below are durable (rule C10)."""
    floor: Slot | None
    """The slot of the newest checkpoint."""


NO_PROGRESS = WalProgress(FIRST_SLOT, None)


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease object of a broker id, as its owner last wrote it. Each write increments `counter`.

    `wal` and `metadata` are stamps: the WAL's progress, and the newest entry of the metadata log
    that the owner had applied (rules C10, C11). The first release wrote none.
    """

    broker_id: BrokerId
    epoch: Epoch
    counter: int
    writer: str
    process: ProcessIdentity
    wal: WalProgress = NO_PROGRESS
    metadata: MetadataStamp | None = None


def lease_key(broker_id: BrokerId) -> str:
    """The key of the lease that all incarnations of a broker id rewrite, one after the other."""
    return f"{LEASE_PREFIX}{broker_id}{LEASE_SUFFIX}"


def encode_lease(lease: Lease) -> bytes:
    return encode_document(LEASE_MAGIC, LEASE_FORMAT, to_json(lease))


def decode_lease(key: str, data: Buffer) -> Lease:
    """The lease stored at `key`. Raises CorruptObject, UnsupportedFormat."""
    try:
        lease = from_json(Lease, decode_document(key, data, LEASE_MAGIC, LEASE_FORMAT))
    except Mismatch as error:
        raise CorruptObject(key, str(error)) from error
    if key != lease_key(lease.broker_id):
        raise CorruptObject(key, f"it is the lease of broker {lease.broker_id}")
    return lease


async def read_lease(store: ObjectStore, broker_id: BrokerId) -> Lease | None:
    """The lease of a broker id, of any incarnation; None if there is none, or it is unreadable.

    A lease proves that its owner lives, and its progress. Observers treat an unreadable lease as
    not renewed. Raises StoreError, UnsupportedFormat.
    """
    key = lease_key(broker_id)
    try:
        return decode_lease(key, (await store.get(key)).data)
    except ObjectNotFound:
        return None
    except CorruptObject as error:
        logger.warning("a lease cannot be read", extra={"key": key, "why": error.why})
        return None


async def list_leases(store: ObjectStore) -> AsyncIterator[tuple[str, Lease]]:
    """All readable leases, with their keys. Raises StoreError, UnsupportedFormat."""
    async for meta in store.list(LEASE_PREFIX):
        digits = meta.key.removeprefix(LEASE_PREFIX).removesuffix(LEASE_SUFFIX)
        if digits.isascii() and digits.isdigit() and meta.key == lease_key(BrokerId(int(digits))):
            lease = await read_lease(store, BrokerId(int(digits)))
            if lease is not None:
                yield meta.key, lease


async def read_durable_end(store: ObjectStore, info: BrokerInfo) -> Slot:
    """The number of durable slots in an incarnation's WAL, by its lease and its fence (C10).

    Raises StoreError, UnsupportedFormat.
    """
    lease = await read_lease(store, info.broker_id)
    if lease is None or lease.epoch != info.epoch:
        return info.durable_end
    return max(info.durable_end, lease.wal.durable_end)


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """One incarnation's signs of life, by the observer's own monotonic clock. Pure.

    A sign of life is a changed lease or a new entry in the metadata log. Another incarnation's
    lease counts as none: an old incarnation may still rewrite it.
    """

    epoch: Epoch
    looks: int = 0
    signs_of_life: int = 0
    unchanged_seconds: float = 0.0
    """The time from the answer that first showed the present value to the last request that met it.

    No renewal sent at least that long before that request can have been overlooked.
    """
    last_entry: int = -1
    since: float = 0.0
    """The answer that first showed the present value."""
    _value: tuple[int, str] | None = None

    def observed(
        self, lease: Lease | None, last_entry: int, asked_at: float, answered_at: float
    ) -> LeaseObservation:
        """The observation after one more read of the lease and of the incarnation's newest
        entry."""
        value = None
        if lease is not None and lease.epoch == self.epoch:
            value = (lease.counter, lease.writer)
        if self.looks > 0 and (value, last_entry) == (self._value, self.last_entry):
            unchanged_seconds = max(0.0, asked_at - self.since)
            return replace(self, looks=self.looks + 1, unchanged_seconds=unchanged_seconds)
        return LeaseObservation(
            epoch=self.epoch,
            looks=self.looks + 1,
            signs_of_life=self.signs_of_life + (self.looks > 0),
            last_entry=last_entry,
            since=answered_at,
            _value=value,
        )
