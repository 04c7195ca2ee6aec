"""Which handler serves which API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.broker.dispatch import Handler
from tidelog.broker.handlers.fetch import fetch
from tidelog.broker.handlers.metadata import metadata
from tidelog.broker.handlers.offsets import delete_records, list_offsets, offset_for_leader_epoch
from tidelog.broker.handlers.produce import produce
from tidelog.broker.handlers.producer_ids import init_producer_id
from tidelog.broker.handlers.topics import create_partitions, create_topics, delete_topics
from tidelog.protocol.api import ApiKey

HANDLERS: Final[Mapping[int, Handler]] = {
    ApiKey.METADATA: metadata,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
}
