"""The states of transactional ids as the table `tidelog.transactions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from tidelog.coordinator.state_columns import (
    MILLISECONDS,
    PARTITIONS,
    column,
    integers,
    integers_or_null,
    numbers_in,
    partition_lists,
    partition_lists_in,
    texts_in,
)
from tidelog.coordinator.transaction.log_records import (
    STORED_STATES,
    TransactionRecord,
    TransactionRemoved,
    TransactionStored,
    UnknownTransactionRecord,
)
from tidelog.coordinator.transaction.transaction import EnlistedPartition, Transaction
from tidelog.identifiers import ProducerEpoch, ProducerId

_INT32, _INT64 = pa.int32(), pa.int64()
_STATES = {state.label: state for state in STORED_STATES.values()}


class TransactionTable:
    """The table, one row a transactional id."""

    name: Final = "tidelog.transactions"
    schema: Final = pa.schema(
        [
            column("transactional_id", pa.string()),
            column("producer_id", _INT64),
            column("producer_epoch", _INT32),
            column("state", pa.string()),
            column("ordinal", _INT64),
            column("partitions", PARTITIONS),
            column("timeout_ms", _INT32),
            column("begun_at", MILLISECONDS, nullable=True),
            column("updated_at", MILLISECONDS),
            column("transaction_version", _INT32),
            column("last_producer_epoch", _INT32, nullable=True),
            column("previous_producer_id", _INT64, nullable=True),
            column("next_producer_id", _INT64, nullable=True),
        ]
    )
    added: Final = frozenset[str]()
    descriptive: Final = frozenset[str]()

    def rows(self, records: list[TransactionRecord]) -> pa.RecordBatch:
        """The records as rows. A removed id has none, since it is no part of a state."""
        ids, transactions = [], []
        for record in records:
            if isinstance(record, TransactionRemoved):
                raise AssertionError(f"{record} cannot be part of a state")
            ids.append(record.transactional_id)
            transactions.append(record.transaction)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(ids, pa.string()),
                integers([each.producer_id for each in transactions], _INT64),
                integers([each.producer_epoch for each in transactions], _INT32),
                pa.array([each.state.label for each in transactions], pa.string()),
                integers([each.ordinal for each in transactions], _INT64),
                partition_lists([sorted(each.partitions) for each in transactions]),
                integers([each.timeout_ms for each in transactions], _INT32),
                integers_or_null([each.begun_ms for each in transactions], MILLISECONDS),
                integers([each.updated_ms for each in transactions], MILLISECONDS),
                integers([each.client_version for each in transactions], _INT32),
                integers_or_null([each.last_epoch for each in transactions], _INT32),
                integers_or_null([each.previous_producer_id for each in transactions], _INT64),
                integers_or_null([each.next_producer_id for each in transactions], _INT64),
            ],
            schema=self.schema,
        )

    def records(self, rows: pa.RecordBatch) -> Iterator[TransactionStored]:
        """The transactions of some rows.

        Raises UnknownTransactionRecord for a state that is never stored.
        """
        columns = {name: rows.column(name) for name in self.schema.names}
        listed = partition_lists_in(columns["partitions"])
        labels = texts_in(columns["state"])
        ids = texts_in(columns["transactional_id"])
        numbers = {
            name: numbers_in(values)
            for name, values in columns.items()
            if name not in ("transactional_id", "state", "partitions")
        }
        for index, (transactional_id, label) in enumerate(zip(ids, labels, strict=True)):
            state = _STATES.get(label or "")
            if transactional_id is None or state is None:
                raise UnknownTransactionRecord(
                    f"transactional id {transactional_id} is in state {label}"
                )
            yield TransactionStored(
                transactional_id,
                Transaction(
                    producer_id=ProducerId(numbers["producer_id"][index]),
                    producer_epoch=ProducerEpoch(numbers["producer_epoch"][index]),
                    state=state,
                    ordinal=numbers["ordinal"][index],
                    partitions=frozenset(map(EnlistedPartition._make, listed[index])),
                    timeout_ms=numbers["timeout_ms"][index],
                    begun_ms=numbers["begun_at"][index],
                    updated_ms=numbers["updated_at"][index],
                    client_version=numbers["transaction_version"][index],
                    last_epoch=ProducerEpoch(numbers["last_producer_epoch"][index]),
                    previous_producer_id=ProducerId(numbers["previous_producer_id"][index]),
                    next_producer_id=ProducerId(numbers["next_producer_id"][index]),
                ),
            )
