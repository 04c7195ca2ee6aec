"""A broker with a topic and a coordinator for transactions of the group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.unit.broker.one_broker import OneBroker, World
from tests.unit.broker.transactional_client import GROUP, find, loaded
from tidelog.clock import SystemClock
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.stores.memory import MemoryStore

OK = ErrorCode.NONE
SETTINGS = {
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    "group_initial_rebalance_delay_ms": 0,
}


@asynccontextmanager
async def serving(partitions: int = 1) -> AsyncIterator[OneBroker]:
    """A broker with a topic, and with a coordinator for the group."""
    async with World(MemoryStore(SystemClock()), **SETTINGS).broker() as broker:
        await broker.create_topic(partitions=partitions)
        assert await find(broker, GROUP, 0) is OK
        await loaded(broker)
        yield broker
