"""Keys belong to the partitions that Kafka's brokers compute."""

from __future__ import annotations

import pytest

from tidelog.coordinator.hashing import partition_for


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        ("groupId", 18),
        ("transactionId", 43),
        ("transactionalId", 8),
        ("topic-sink", 3),
        ("", 0),
        ("polygenelubricants", 0),
    ],
)
def test_worked_examples(key: str, partition: int) -> None:
    """Keys with negative hashes, including the lowest number, which has no absolute value in
    Java."""
    assert partition_for(key, 50) == partition


def test_characters_beyond_16_bits_count_as_two_units() -> None:
    # Java: "\uD83D\uDE00".hashCode() = 31 * 0xD83D + 0xDE00 = 1772899
    assert partition_for("\U0001f600", 1_000_000_007) == 31 * 0xD83D + 0xDE00
    assert partition_for("\ud83d", 1_000_000_007) == 0xD83D
