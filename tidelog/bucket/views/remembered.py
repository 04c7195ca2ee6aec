"""Keeps tables from one view of a bucket to the next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.identifiers import TopicId
from tidelog.storage.table.table_log import TableLog
from tidelog.storage.table.table_state import TableState

TABLES_MAX: Final = 1000
"""Beyond this number the least recently used tables are dropped, and read anew on demand."""


class RememberedTables:
    """Each table as of the last view; the next view reads only later commits."""

    def __init__(self) -> None:
        self._held: dict[TopicId, tuple[TableLog, TableState]] = {}

    async def table(self, topic: Topic, read: Callable[[Topic], Awaitable[TableLog]]) -> TableState:
        """A topic's present table, which does not change afterwards.

        `read` reads an unknown one. Its errors are raised here; the table is then not kept.
        """
        held = self._held.pop(topic.topic_id, None)
        if held is None:
            log = await read(topic)
            state = log.state.copy()
        else:
            log, state = held
            await log.refresh()
            if log.state.version != state.version:
                state = log.state.copy()
        self._held[topic.topic_id] = log, state
        while len(self._held) > TABLES_MAX:
            self._held.pop(next(iter(self._held)))
        return state
