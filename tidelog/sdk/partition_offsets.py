"""The partitions of a topic, and their offsets at a time or an edge, as brokers tell them."""

from __future__ import annotations

from collections.abc import Sequence

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition

from tidelog.sdk.connecting import pause, repeated
from tidelog.sdk.errors import KafkaRequestError, translated
from tidelog.sdk.fetched import Place

EARLIEST, LATEST = -2, -1
_LEADER_LAGS = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
"""What a broker says that does not know yet of a new topic, or of a partition that has moved."""


def partitions_of(
    client: confluent_kafka.Consumer, topic: str, block_ms_max: int | None
) -> list[int]:
    """The numbers of a topic's partitions. Raises KafkaRequestError, also for an unknown topic."""
    found = repeated(
        lambda seconds: client.list_topics(topic, seconds), f"topic {topic}", block_ms_max
    ).topics[topic]
    if found.error is not None:
        raise KafkaRequestError(
            f"topic {topic}: {found.error.str()}; create it first, or give a group to wait for it",
            found.error.name(),
        )
    return sorted(found.partitions)


def offsets_at(
    client: confluent_kafka.Consumer, places: Sequence[Place], time: int, block_ms_max: int | None
) -> dict[Place, int]:
    """The offsets of a time in milliseconds, or of an edge. Raises KafkaRequestError."""
    wanted = [TopicPartition(*place, time) for place in places]

    def asked(seconds: float) -> list[TopicPartition]:
        answered: list[TopicPartition] = client.offsets_for_times(wanted, seconds)
        for each in answered:
            if each.error is not None and each.error.code() in _LEADER_LAGS:
                raise confluent_kafka.KafkaException(each.error)
        return answered

    topics = ", ".join(dict.fromkeys(topic for topic, _ in places))
    found = repeated(asked, f"offsets of {topics}", block_ms_max, pause, passing=_LEADER_LAGS)
    for each in found:
        if each.error is not None:
            raise translated(each.error, f"offsets of {each.topic}-{each.partition}")
    return {(each.topic, each.partition): each.offset for each in found}
