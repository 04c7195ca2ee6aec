"""Work beside a hand-over, broken on purpose."""

from __future__ import annotations

from tests.simulation.world.patches import Breakage, Patch
from tidelog.broker.tables.tables import Tables
from tidelog.identifiers import TopicId
from tidelog.storage.table import table_state
from tidelog.storage.table.table_state import TableState


def _opens_with_old_table() -> list[Patch]:
    """A broker opens a partition by the table as it knew it, maybe before the giver's last commit,
    and so takes the table for one that has lost versions (G1)."""

    async def refresh_or_reopen(self: Tables, topic_id: TopicId) -> TableState:
        return await self.open(topic_id)

    return [(Tables, "refresh_or_reopen", refresh_or_reopen)]


def _any_commit() -> list[Patch]:
    """A table takes every commit, even one that continues another version or removes unknown
    segments (E1, E3)."""
    return [(table_state, "refusal_of", lambda *_: None)]


HANDOVER_VARIANTS: dict[str, Breakage] = {
    "opens-with-old-table": _opens_with_old_table,
    "any-commit": _any_commit,
}
