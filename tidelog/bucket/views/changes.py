"""Asks the store whether a bucket has changed, by one request at a time.

Without it, a polling reader would pay for a whole view to learn that nothing is new. If the answer
is yes, the reader takes a view after the question. So the view shows all changes before the
question, and the next question finds the later ones.

Every change that a reader of topics can see has a slot in some WAL. Seals and opening images of new
owners are slots too. So a question lists the WALs of all brokers in one request. The listing begins
behind the known end of the first WAL; the WAL of a live broker without slots counts too. If the
answer fills a page, the next question continues behind the known end of the page's last WAL.

A broker uploads several slots at a time, so a slot may land after later ones. A view ends at the
absent slot and shows none of them. So the known end of a WAL is below its absent slots, unless so
many slots lie behind them that they cannot be in flight.

Every 20th question reads the metadata log instead, which names new incarnations and deleted topics.
After a change of that log, the listing begins again with the first WAL. A reader of tables alone
asks for the next commit of one topic's table at each question.

The collector deletes a slot that was needless for `log.delete.grace.ms`. So slots may come and go
between two questions that are far apart: then the answer is yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.bucket.object_keys import WAL_FOLDER
from tidelog.bucket.views.reading import BucketAccess
from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import ObjectNotFound
from tidelog.storage.table.table_log import commit_key
from tidelog.storage.table.table_state import TableState
from tidelog.wal.format.object_format import HEADER_BYTES, wal_key, wal_position, wal_prefix

PAGE_KEYS: Final = 1000
"""The keys that a store lists in one request."""
METADATA_TURN: Final = 20
"""Every question whose number is a multiple of this one reads the metadata log."""
IN_FLIGHT_SLOTS_MAX: Final = 256
"""An absent slot further below its WAL's newest is taken for collected.

A broker uploads `wal.uploads.in.flight.max` (64) slots at a time. If that setting is above this
number, a slot that lands so late may stay unread until a broker writes again.
"""
APART_MS_MAX: Final = 60_000
"""A later question answers yes. The wall clock measures, since it counts a machine's sleep."""


class Changes:
    """The slots and the metadata that the last question found."""

    def __init__(self, access: BucketAccess, *, with_tails: bool) -> None:
        """`with_tails`: False for readers of tables alone."""
        self._access = access
        self._with_tails = with_tails
        self._newest: dict[Incarnation, Slot] = {}
        self._absent: dict[Incarnation, frozenset[int]] = {}
        """The slots below the newest that may be in flight still."""
        self._after = ""
        self._sequence = -1
        self._questions = 0
        self._asked_ms = access.clock.time_ms()

    async def found(self, tables: Sequence[TableState]) -> bool:
        """Whether the bucket may have changed since the last question.

        At the first question every WAL is new. `tables`: the reader's topics' tables, as of its
        last view. Raises StoreError and CorruptObject.
        """
        now_ms = self._access.clock.time_ms()
        is_late = abs(now_ms - self._asked_ms) > min(
            APART_MS_MAX, self._access.settings.delete_grace_ms // 2
        )
        self._questions += 1
        if self._questions % METADATA_TURN == 0:
            has_grown = await self._metadata_has_grown()
        elif self._with_tails:
            has_grown = await self._wals_have_grown()
        else:
            has_grown = await self._table_has_grown(tables)
        # A failed question does not count: the next one finds the same changes.
        self._asked_ms = now_ms
        return has_grown or is_late

    async def _metadata_has_grown(self) -> bool:
        cluster = self._access.cluster
        before = cluster.state.sequence
        return (await cluster.refresh()).sequence != before

    async def _table_has_grown(self, tables: Sequence[TableState]) -> bool:
        if not tables:
            return False
        # Without the questions about the metadata log: else some tables would never be asked for.
        turn = self._questions - self._questions // METADATA_TURN
        table = tables[turn % len(tables)]
        try:
            await self._access.store.head(commit_key(table.topic_id, table.version + 1))
        except ObjectNotFound:
            return False
        return True

    async def _wals_have_grown(self) -> bool:
        state = self._access.cluster.state
        if state.sequence != self._sequence:
            # The WALs of new incarnations may sort before all known ones.
            self._sequence, self._after = state.sequence, ""
        newest, absent = dict(self._newest), dict(self._absent)
        number, last = 0, self._after
        listing = self._access.store.list(WAL_FOLDER, self._after)
        async for meta in listing:
            number, last = number + 1, meta.key
            position = wal_position(meta.key)
            if position is not None:
                is_seal = meta.size == HEADER_BYTES
                _add_slot(newest, absent, *position, is_seal=is_seal)
            if number == PAGE_KEYS:
                break
        has_grown = (newest, absent) != (self._newest, self._absent)
        self._newest, self._absent = newest, absent
        known_keys = [_end_key(owner, slot, absent.get(owner)) for owner, slot in newest.items()]
        living = (each.incarnation for each in state.live_brokers())
        known_keys += [wal_prefix(each) for each in living if each not in newest]
        if number < PAGE_KEYS:
            self._after = min(known_keys, default="")
        else:
            folder = last.rpartition("/")[0]
            here = (key for key in known_keys if key.rpartition("/")[0] == folder)
            self._after = max([last, *here])
        return has_grown


def _add_slot(
    newest: dict[Incarnation, Slot],
    absent: dict[Incarnation, frozenset[int]],
    owner: Incarnation,
    slot: Slot,
    *,
    is_seal: bool,
) -> None:
    """Note a listed slot."""
    known, missing = newest.get(owner, -1), absent.get(owner, frozenset())
    if slot <= known:
        if slot in missing:
            absent[owner] = missing - {slot}
        return
    newest[owner] = slot
    least = slot - IN_FLIGHT_SLOTS_MAX
    # A sealer puts seals far ahead, and fills nothing between.
    added = () if is_seal else range(max(known + 1, least), slot)
    if added or missing:
        absent[owner] = frozenset([*(each for each in missing if each >= least), *added])


def _end_key(owner: Incarnation, newest: Slot, absent: frozenset[int] | None) -> str:
    """The key behind which the unknown slots of a WAL lie."""
    end = min(absent) - 1 if absent else newest
    return wal_key(owner, Slot(end)) if end >= 0 else wal_prefix(owner)
