"""Work beside a hand-over, broken on purpose."""

from __future__ import annotations

from tests.simulation.world.patches import Breakage, Patch
from tidelog.broker.tables.tables import Tables
from tidelog.identifiers import TopicId
from tidelog.storage.table.table_state import TableState


def _opens_with_old_table() -> list[Patch]:
    """A broker opens a partition by the table as it knew it, maybe before the giver's last commit,
    and so takes the table for one that has lost versions (G1)."""

    async def refresh_or_reopen(self: Tables, topic_id: TopicId) -> TableState:
        return await self.open(topic_id)

    return [(Tables, "refresh_or_reopen", refresh_or_reopen)]


HANDOVER_VARIANTS: dict[str, Breakage] = {
    "opens-with-old-table": _opens_with_old_table,
}
