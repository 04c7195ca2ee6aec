"""WriteTxnMarkers between brokers: a coordinator sends the markers of decided transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tidelog.broker.peers.enlistments import by_topic, code_of
from tidelog.coordinator.transaction.decision import Markers
from tidelog.coordinator.transaction.transaction import EnlistedPartition
from tidelog.identifiers import TopicId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.schemas.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


class RemoteMarkers(NamedTuple):
    """One transaction's markers for some partitions, which one other broker leads."""

    markers: Markers
    partitions: frozenset[EnlistedPartition]
    topic_ids: Mapping[str, TopicId]
    """The topics that the coordinator means by the partitions' names."""


MarkerCodes = Mapping[EnlistedPartition, ErrorCode]
"""The leader's answer: NONE if the marker is durable there."""


class MarkerForm:
    """Markers of several transactions in one request.

    The leader answers when the markers are durable. A lost answer does no harm: the coordinator
    sends the markers again, and the partition has them by their ordinal (H1). A late answer does
    none either: it names a marker that is durable, whatever happened since.
    """

    purpose: Final = "markers"

    def size(self, item: RemoteMarkers) -> int:
        return len(item.partitions)

    def request(self, items: Sequence[RemoteMarkers]) -> WriteTxnMarkersRequest:
        return WriteTxnMarkersRequest(markers=[_writable(item) for item in items])

    def replies(
        self, items: Sequence[RemoteMarkers], response: WriteTxnMarkersResponse
    ) -> list[MarkerCodes]:
        """The results, which come in the order of the markers."""
        if len(response.markers) != len(items):
            raise MalformedMessage(f"{len(response.markers)} results answer {len(items)} markers")
        return [_codes(*each) for each in zip(items, response.markers, strict=True)]


def _writable(item: RemoteMarkers) -> WritableTxnMarker:
    markers = item.markers
    return WritableTxnMarker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        transaction_result=markers.commit,
        topics=[
            WritableTxnMarkerTopic(
                name=name, partition_indexes=numbers, topic_id=item.topic_ids[name]
            )
            for name, numbers in by_topic(item.partitions).items()
        ],
        coordinator_epoch=markers.coordinator_epoch,
        transaction_version=markers.transaction_version,
        ordinal=markers.ordinal,
    )


def _codes(item: RemoteMarkers, result: WritableTxnMarkerResult) -> MarkerCodes:
    codes = {
        EnlistedPartition(topic.name, each.partition_index): code_of(each.error_code)
        for topic in result.topics
        for each in topic.partitions
    }
    if result.producer_id != item.markers.producer_id or codes.keys() != item.partitions:
        raise MalformedMessage(f"a result answers other markers than {item}")
    return codes
