"""Tables that are kept between one look at a bucket and the next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.identifiers import TopicId
from tidelog.storage.table.table_log import TableLog
from tidelog.storage.table.table_state import TableState

TABLES_MAX: Final = 1000
"""Those that were not asked for the longest are read anew."""


class RememberedTables:
    """Each table as of the last look; the next look reads only later commits."""

    def __init__(self) -> None:
        self._held: dict[TopicId, tuple[TableLog, TableState]] = {}

    async def table(self, topic: Topic, read: Callable[[Topic], Awaitable[TableLog]]) -> TableState:
        """A topic's table as it is now; it does not change afterwards. `read` reads one that is not
        known. Raises what that raises; then nothing is kept of it."""
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
