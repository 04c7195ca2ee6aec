"""The internal topics of the coordinators' states, and the codecs of their records. Pure."""

from __future__ import annotations

from typing import Final

from tidelog.coordinator.group.records import log_records as group_records
from tidelog.coordinator.log_codec import Codec
from tidelog.coordinator.transaction import log_records as transaction_records

GROUP_TOPIC: Final = "__consumer_offsets"
TRANSACTION_TOPIC: Final = "__transaction_state"

GROUP_CODEC: Final[Codec[group_records.GroupRecord]] = Codec(
    group_records.encode_record,
    lambda logged: group_records.decode_record(*logged),
    group_records.TransactionEnded,
)
TRANSACTION_CODEC: Final[Codec[transaction_records.TransactionRecord]] = Codec(
    transaction_records.encode_record,
    lambda logged: transaction_records.decode_record(logged.key, logged.value),
)
