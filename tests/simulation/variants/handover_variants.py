"""Work beside a hand-over, broken on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar

from tests.simulation.world.patches import Breakage, Patch
from tidelog.broker.partitions.partitions import Partition
from tidelog.broker.roll.recovered import RecoveredPartitions
from tidelog.broker.tables.tables import Tables
from tidelog.identifiers import TopicId
from tidelog.storage.table.table_state import TableState

_OPENING: ContextVar[bool] = ContextVar("recovered partitions learn from their tables")


def _opens_with_old_table() -> list[Patch]:
    """A broker opens a partition by the table as it knew it, maybe before the giver's last commit,
    and so takes the table for one that has lost versions (G1)."""
    right_advance, right_refresh = RecoveredPartitions.advance, Tables.refresh

    async def advance(self: RecoveredPartitions, partitions: Iterable[Partition]) -> None:
        before = _OPENING.set(True)
        try:
            await right_advance(self, partitions)
        finally:
            _OPENING.reset(before)

    async def refresh(self: Tables, topic_id: TopicId) -> TableState:
        if _OPENING.get(False):
            return await self.open(topic_id)
        return await right_refresh(self, topic_id)

    return [(RecoveredPartitions, "advance", advance), (Tables, "refresh", refresh)]


HANDOVER_VARIANTS: dict[str, Breakage] = {
    "opens-with-old-table": _opens_with_old_table,
}
