"""A bucket with hanging transactions: open in a partition, but unknown to every coordinator. The
broker verifies transactions, so only the loss of a coordinator's record can leave one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.unit.broker.one_broker import World
from tests.unit.broker.transactional_client import TransactionalClient
from tidelog.clock import SystemClock
from tidelog.coordinator.decision import Decision
from tidelog.coordinator.transaction.log_records import TransactionRemoved
from tidelog.entropy import SeededEntropy
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.stores.filesystem import FilesystemStore

SETTINGS = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 2}


def make_hanging(bucket: Path, topic: str, transactional_ids: Sequence[str]) -> list[int]:
    """Write the bucket. The n-th transaction hangs at offset 0 of the n-th partition. Returns the
    producer ids."""

    async def main() -> list[int]:
        store = FilesystemStore(bucket, SystemClock(), SeededEntropy(1))
        async with World(store, **SETTINGS).broker() as broker:
            await broker.create_topic(topic, len(transactional_ids))
            producer_ids = []
            for number, key in enumerate(transactional_ids):
                producer = TransactionalClient(broker, key)
                assert await producer.init() is ErrorCode.NONE
                assert await producer.send(b"x", number, topic=topic) is ErrorCode.NONE
                runtime = broker.broker.coordination.coordinators.transactions.find(key)
                runtime.carry_out(Decision([TransactionRemoved(key)]))
                producer_ids.append(producer.producer_id)
            return producer_ids

    return asyncio.run(main())
