"""Leases: how a broker shows that it lives, and how others judge that it does not (B2, B3)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import NoReturn

from tidelog.clock import Clock
from tidelog.coordinator.cluster.codec import Mismatch, from_json, to_json
from tidelog.coordinator.cluster.documents import decode_document, encode_document
from tidelog.coordinator.cluster.metadata_log import MetadataLog
from tidelog.coordinator.cluster.prefix import LEASE_PREFIX
from tidelog.coordinator.cluster.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records import LeaseResumed
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject, Refused
from tidelog.identifiers import BrokerId, Epoch, Incarnation
from tidelog.storage.object_store import (
    Buffer,
    ObjectNotFound,
    ObjectStore,
    StoreError,
    StoreOutcomeUnknown,
)

LEASE_MAGIC = "tidelog.lease"
LEASE_FORMAT = 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease object of a broker id, as its owner last wrote it; `counter` grows each time."""

    broker_id: BrokerId
    epoch: Epoch
    counter: int
    writer: str
    process: ProcessIdentity


def lease_key(broker_id: BrokerId) -> str:
    """The object that all incarnations of a broker id rewrite, one after the other."""
    return f"{LEASE_PREFIX}{broker_id}.json"


def encode_lease(lease: Lease) -> bytes:
    """The lease's object."""
    return encode_document(LEASE_MAGIC, LEASE_FORMAT, to_json(lease))


def decode_lease(key: str, data: Buffer) -> Lease:
    """The lease stored at `key`. CorruptObject, UnsupportedFormat."""
    try:
        return from_json(Lease, decode_document(key, data, LEASE_MAGIC, LEASE_FORMAT))
    except Mismatch as error:
        raise CorruptObject(key, str(error)) from error


async def read_lease(store: ObjectStore, broker_id: BrokerId) -> Lease | None:
    """The lease of a broker id, whichever incarnation's; None if there is none yet."""
    key = lease_key(broker_id)
    try:
        stored = await store.get(key)
    except ObjectNotFound:
        return None
    return decode_lease(key, stored.data)


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """What an observer has seen of one incarnation, by the observer's own monotonic clock. Pure.

    A sign of life is a changed lease or a new entry in the metadata log. Another incarnation's
    lease counts as none: an old one may still rewrite it.
    """

    epoch: Epoch
    looks: int = 0
    signs_of_life: int = 0
    unchanged_seconds: float = 0.0
    """From the answer that first showed the present value to the last question that met it. So no
    renewal that was asked for at least so long before that question can have been overlooked."""
    last_entry: int = -1
    _value: tuple[int, str] | None = None
    _since: float = 0.0

    def saw(
        self, lease: Lease | None, last_entry: int, asked_at: float, answered_at: float
    ) -> LeaseObservation:
        """With one more look at the lease and at the newest entry that the incarnation wrote."""
        value = None
        if lease is not None and lease.epoch == self.epoch:
            value = (lease.counter, lease.writer)
        if self.looks > 0 and (value, last_entry) == (self._value, self.last_entry):
            unchanged_seconds = max(0.0, asked_at - self._since)
            return replace(self, looks=self.looks + 1, unchanged_seconds=unchanged_seconds)
        return LeaseObservation(
            epoch=self.epoch,
            looks=self.looks + 1,
            signs_of_life=self.signs_of_life + (self.looks > 0),
            last_entry=last_entry,
            _value=value,
            _since=answered_at,
        )


class LeaseKeeper:
    """Renews an incarnation's lease, and says whether it may still answer reads (rule B3).

    A renewal counts from its start. One that comes to an end too late after the one before may not
    have kept an observer from its judgement; then the incarnation first writes LeaseResumed into
    the metadata log. An observer fences only whom it has not seen writing there since its last look
    at the lease, so either its entry or ours comes first, and the other one is refused.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        log: MetadataLog,
        incarnation: Incarnation,
        process: ProcessIdentity,
        registered_at: float,
    ) -> None:
        """`registered_at` is the monotonic time before the registration was appended: nobody can
        have begun to watch the lease before."""
        self._store = store
        self._clock = clock
        self._log = log
        self._incarnation = incarnation
        self._interval_seconds = log.settings.heartbeat_interval_ms / 1000
        self._trust_seconds = (
            log.settings.session_timeout_ms - log.settings.lease_margin_ms
        ) / 1000
        self._renewed_at = registered_at
        self._lease = Lease(
            broker_id=incarnation.broker_id,
            epoch=incarnation.epoch,
            counter=0,
            writer=entropy.uuid().hex,
            process=process,
        )

    def fresh(self, now: float) -> bool:
        """Whether nobody can have fenced this incarnation for want of a lease, at monotonic `now`.

        While it is not fresh it must not answer what rests on its being the owner.
        """
        return now - self._renewed_at < self._trust_seconds

    async def renew(self) -> None:
        """Renew it once. StoreError: not known to be renewed. Fenced: the incarnation must end."""
        started = self._clock.monotonic()
        self._lease = replace(self._lease, counter=self._lease.counter + 1)
        key = lease_key(self._lease.broker_id)
        try:
            # A new renewal is worth more than one that is repeated for long.
            async with asyncio.timeout(self._trust_seconds / 2):
                await self._store.put(key, encode_lease(self._lease))
        except TimeoutError as error:
            raise StoreOutcomeUnknown(key, "the lease's renewal took too long") from error
        if not self.fresh(self._clock.monotonic()):
            epoch = self._incarnation.epoch
            await self._log.append(epoch, lambda _: (LeaseResumed(epoch),))
            logger.warning(
                "the lease was renewed late and is resumed",
                extra={"incarnation": str(self._incarnation)},
            )
        self._renewed_at = started

    async def run(self) -> NoReturn:
        """Renew it for ever. Faults of the store, and a metadata log that takes no more changes,
        are logged and cost freshness; the rest ends."""
        while True:
            started = self._clock.monotonic()
            try:
                await self.renew()
            except (Refused, StoreError) as error:
                logger.warning(
                    "the lease could not be renewed",
                    extra={"incarnation": str(self._incarnation), "why": str(error)},
                )
            elapsed = self._clock.monotonic() - started
            # A renewal that took longer is repeated at once, but never without a pause.
            await self._clock.sleep(
                max(self._interval_seconds - elapsed, 0.1 * self._interval_seconds)
            )
