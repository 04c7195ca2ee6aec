"""Ids of topics: each is unique, and contains the number of the entry that created the topic."""

from __future__ import annotations

from uuid import RFC_4122, UUID

from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordinator.cluster.records.topics import created_at, new_topic_id

SEQUENCES = st.integers(0, 2**48 - 1)


@given(SEQUENCES, st.uuids())
def test_an_id_tells_its_entry_and_is_a_uuid_of_version_8(sequence: int, random: UUID) -> None:
    topic_id = new_topic_id(sequence, random)
    assert created_at(topic_id) == sequence
    assert (topic_id.version, topic_id.variant) == (8, RFC_4122)


@given(SEQUENCES, st.uuids(), SEQUENCES, st.uuids())
def test_ids_are_in_the_order_of_their_entries(
    first: int, one: UUID, second: int, other: UUID
) -> None:
    ids = new_topic_id(first, one), new_topic_id(second, other)
    if first != second:
        assert (ids[0] < ids[1]) == (first < second)


@given(SEQUENCES, st.integers(0, 2**74 - 1), st.integers(0, 2**74 - 1))
def test_74_random_bits_tell_topics_of_one_entry_apart(sequence: int, one: int, other: int) -> None:
    def spread(bits: int) -> UUID:
        """The bits that are not the entry's number, the version or the variant."""
        low, middle = bits & (1 << 62) - 1, bits >> 62
        return UUID(int=middle << 64 | low)

    same = new_topic_id(sequence, spread(one)) == new_topic_id(sequence, spread(other))
    assert same == (one == other)


@given(st.uuids(version=4))
def test_an_id_of_the_first_release_tells_nothing(topic_id: UUID) -> None:
    assert created_at(topic_id) is None
