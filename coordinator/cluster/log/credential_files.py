"""Reads, writes and replaces the object of all verifiers.

A change writes a new object, then the entry of the metadata log that names it, then deletes the old
object. A death before the entry leaves an object that no entry names: it counts for nothing. A
death after it leaves the old object, which counts no longer. The collector deletes both. Of two
changes at a time one comes first. The other reads its result and starts again.

A process may stall between object and entry. So an entry names only an object whose put began less
than half the grace before the process read the state that the entry follows. Otherwise the process
starts again with a new object. The collector deletes an object that the log does not name once the
log has an entry younger by more than the grace. An append that read an earlier state then finds its
number taken; one that read this entry finds its object too old (docs/architecture/deletion.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.credentials import (
    CREDENTIALS_PREFIX,
    CREDENTIALS_SUFFIX,
    DECOY_KEY_BYTES,
    Credentials,
    decode_credentials,
    encode_credentials,
)
from tidelog.coordinator.cluster.records.records import (
    CREDENTIALS_VERSION,
    CredentialsChanged,
    Record,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.entropy import Entropy
from tidelog.errors import Refused
from tidelog.identifiers import Epoch
from tidelog.storage.object_store import IfAbsent, ObjectNotFound, ObjectStore, StoreError

ATTEMPTS_MAX = 10

logger = logging.getLogger(__name__)


class _StartAgain(Refused):
    """Another change came first, or the new object has become too old to be named."""


async def read_credentials(log: MetadataLog, store: ObjectStore) -> tuple[str | None, Credentials]:
    """The key of the present object, and its credentials.

    Raises StoreError, CorruptObject, UnsupportedFormat.
    """
    for attempt in range(ATTEMPTS_MAX):
        key = log.state.credentials
        if key is None:
            return None, Credentials()
        try:
            found = await store.get(key)
        except ObjectNotFound:
            # A change that this process has not read yet has replaced the object.
            if attempt + 1 == ATTEMPTS_MAX:
                raise
            await log.refresh()
            continue
        return key, decode_credentials(key, found.data)
    raise AssertionError("not reached")


async def change_credentials(
    log: MetadataLog,
    store: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    author: Epoch | None,
    change: Callable[[Credentials], Credentials],
) -> None:
    """Make a change durable, in the whole cluster. `change` may be called more than once.

    Raises the errors of `change`, Refused, StoreError, and the errors of MetadataLog.append.
    """
    await log.refresh()
    for _ in range(ATTEMPTS_MAX):
        old, base = await read_credentials(log, store)
        if not base.decoy_key:
            base = Credentials(_secret(entropy), base.verifiers)
        changed = change(base)
        key = f"{CREDENTIALS_PREFIX}{entropy.uuid().hex}{CREDENTIALS_SUFFIX}"
        named_until = clock.monotonic() + log.settings.delete_grace_ms / 1000 / 2
        await store.put(key, encode_credentials(changed), IfAbsent())
        try:
            await log.append(author, partial(_record, key, old, clock, named_until))
        except Refused as refused:
            # Nothing was appended: no entry names the new object.
            await _delete(store, key)
            if isinstance(refused, _StartAgain):
                continue
            raise
        if old is not None:
            await _delete(store, old)
        return
    raise Refused("other changes of credentials came first; nothing was changed. Try again")


def _record(
    key: str, old: str | None, clock: Clock, named_until: float, state: ClusterState
) -> tuple[Record, ...]:
    if state.credentials != old:
        raise _StartAgain("the credentials have changed meanwhile")
    if clock.monotonic() >= named_until:
        raise _StartAgain(f"{key} was written too long ago, and may be deleted")
    for info in state.live_brokers():
        if info.version < CREDENTIALS_VERSION:
            raise Refused(
                f"broker {info.broker_id} is of an earlier release, which knows no credentials."
                " Nothing was changed. Upgrade all brokers first"
            )
    return (CredentialsChanged(key, old),)


def _secret(entropy: Entropy) -> bytes:
    secret = b""
    while len(secret) < DECOY_KEY_BYTES:
        secret += entropy.uuid().bytes
    return secret


async def _delete(store: ObjectStore, key: str) -> None:
    try:
        await store.delete(key)
    except StoreError as error:
        logger.warning(
            "an object of replaced credentials could not be deleted",
            extra={"key": key, "why": str(error)},
        )
