"""The ids that the metadata log forgets, and its knowledge of them afterwards (C11, F3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from tests.unit.coordinator.cluster.samples import (
    CLUSTER,
    DELAYS,
    FLIGHTS,
    NOWHERE,
    RETIRED,
    after,
    fenced,
    flights,
    harbour,
    registered,
)
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    IncarnationRetired,
    IncarnationsForgotten,
    LeaseResumed,
    OpenedTenures,
    PartitionMoved,
    Record,
    Succession,
    TenuresOpened,
    TopicCreated,
    TopicDeleted,
    TopicsForgotten,
)
from tidelog.coordinator.cluster.records.topics import TopicFate, created_at, new_topic_id
from tidelog.coordinator.cluster.state.draft import InvalidRecord
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.cluster.state.state_snapshot import decode_snapshot, encode_snapshot
from tidelog.identifiers import BrokerId, Epoch, Incarnation, LeaderEpoch, Slot

FIRST = Incarnation(BrokerId(1), Epoch(1))
NUMBERED = new_topic_id(4, UUID(int=2**128 - 1))
"""A topic that entry 4 of the harbour creates."""


def retired() -> ClusterState:
    """Broker 2 has taken over broker 1's partitions, and has not opened them yet."""
    return after(fenced(), 2, RETIRED)


def opened() -> ClusterState:
    """Broker 2 has opened all partitions, so no tenure names broker 1 any more."""
    groups = (
        OpenedTenures(FLIGHTS, LeaderEpoch(1), (0, 2)),
        OpenedTenures(DELAYS, LeaderEpoch(1), (0,)),
    )
    return after(retired(), 2, TenuresOpened(groups))


def forgotten() -> ClusterState:
    return after(opened(), 2, IncarnationsForgotten((FIRST.epoch,)))


def deleted() -> ClusterState:
    """With a numbered topic that was created by entry 4 and deleted by entry 5."""
    state = after(harbour(), 1, TopicCreated(NUMBERED, "numbered", (Epoch(1),)))
    return after(state, 1, TopicDeleted(NUMBERED))


REFUSED: list[tuple[str, Callable[[], ClusterState], list[Record], str]] = [
    ("topic alive", harbour, [TopicsForgotten((FLIGHTS,))], "not known as deleted"),
    ("topic unknown", harbour, [TopicsForgotten((NOWHERE,))], "not known as deleted"),
    ("topic twice", deleted, [TopicsForgotten((NUMBERED, NUMBERED))], "not known as deleted"),
    ("one of two", deleted, [TopicsForgotten((NUMBERED, FLIGHTS))], "not known as deleted"),
    ("alive", harbour, [IncarnationsForgotten((Epoch(1),))], "not that of a retired"),
    ("fenced", fenced, [IncarnationsForgotten((Epoch(1),))], "not that of a retired"),
    ("named", retired, [IncarnationsForgotten((Epoch(1),))], "tenures name epoch 1"),
    ("unknown", opened, [IncarnationsForgotten((Epoch(9),))], "not that of a retired"),
    ("twice", opened, [IncarnationsForgotten((Epoch(1), Epoch(1)))], "not that of a retired"),
    ("again", forgotten, [IncarnationsForgotten((Epoch(1),))], "not that of a retired"),
]


@pytest.mark.parametrize(
    ("before", "records", "why"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_an_id_that_may_be_needed_is_not_forgotten(
    before: Callable[[], ClusterState], records: list[Record], why: str
) -> None:
    state = before()
    with pytest.raises(InvalidRecord, match=why):
        after(state, 2, *records)
    assert state == before()


def test_a_deleted_topic_is_remembered_with_the_entry_that_deleted_it_until_it_is_forgotten() -> (
    None
):
    state = deleted()
    assert state.deleted == {NUMBERED: 5}
    assert state.fate_of(NUMBERED) is TopicFate.DELETED
    state = after(state, 2, TopicsForgotten((NUMBERED,)))
    assert state.deleted == {}
    assert state.fate_of(NUMBERED) is TopicFate.FORGOTTEN
    # The state knows nothing more of a forgotten id, not even its name.
    assert state.topic_named("numbered") is None


def test_a_topic_may_be_deleted_and_forgotten_in_one_entry() -> None:
    state = after(harbour(), 1, TopicDeleted(FLIGHTS), TopicsForgotten((FLIGHTS,)))
    assert state.deleted == {}
    assert FLIGHTS not in state.topics


def test_an_incarnation_is_named_by_any_of_a_partitions_tenures() -> None:
    """A tenure that never opened stays in the list of tenures, and its WAL may have to be read."""
    state = after(retired(), None, registered(3))
    third = Epoch(state.sequence)
    state = after(state, third, BrokerFenced(Epoch(2)))
    everything = (
        Succession(FLIGHTS, third, (0, 1, 2)),
        Succession(DELAYS, third, (0,)),
    )
    state = after(state, third, IncarnationRetired(Epoch(2), Slot(3), everything))
    for epoch in (1, 2):
        with pytest.raises(InvalidRecord, match=f"tenures name epoch {epoch}"):
            after(state, third, IncarnationsForgotten((Epoch(epoch),)))


def test_a_givers_incarnation_is_named_until_the_new_owner_opens_the_partition() -> None:
    moved = after(harbour(), 1, PartitionMoved(FLIGHTS, 0, Epoch(2), "handover/h"))
    rest = (Succession(FLIGHTS, Epoch(2), (2,)), Succession(DELAYS, Epoch(2), (0,)))
    state = after(moved, 2, BrokerFenced(Epoch(1)))
    state = after(state, 2, IncarnationRetired(Epoch(1), Slot(4), rest))
    taken = (
        OpenedTenures(FLIGHTS, LeaderEpoch(1), (2,)),
        OpenedTenures(DELAYS, LeaderEpoch(1), (0,)),
    )
    state = after(state, 2, TenuresOpened(taken))
    forget = IncarnationsForgotten((Epoch(1),))
    with pytest.raises(InvalidRecord, match="tenures name epoch 1"):
        after(state, 2, forget)
    last = TenuresOpened((OpenedTenures(FLIGHTS, LeaderEpoch(1), (0,)),))
    assert after(state, 2, last, forget).retired == {}


def test_a_forgotten_incarnation_counts_as_retired() -> None:
    before, state = opened(), forgotten()
    assert before.retired.keys() == {1}
    assert before.is_retired(FIRST)
    assert state.retired == {}
    assert state.is_retired(FIRST)
    assert state.incarnation(FIRST.epoch) is None
    assert not state.is_live(FIRST.epoch)
    assert state.owned_by(FIRST.epoch) == ()
    assert state.tenures(flights(0)) == before.tenures(flights(0))


def test_an_unknown_epoch_counts_as_retired_up_to_the_end_of_the_log() -> None:
    """An unknown epoch at or below the log's end was retired and is forgotten."""
    state = forgotten()
    for epoch in range(state.sequence + 3):
        incarnation = Incarnation(BrokerId(1), Epoch(epoch))
        expected = epoch <= state.sequence and epoch != 2
        assert state.is_retired(incarnation) is expected, epoch
    assert not fenced().is_retired(FIRST)


def test_a_forgotten_incarnation_is_not_registered_again() -> None:
    state = after(forgotten(), None, registered(1))
    info = state.broker(BrokerId(1))
    assert info is not None
    assert info.epoch == state.sequence
    with pytest.raises(InvalidRecord, match="epoch 1, is not registered"):
        after(state, 1, LeaseResumed(Epoch(1)))


def test_a_topics_fate_is_told_by_its_id_alone_once_it_is_forgotten() -> None:
    state = after(deleted(), 2, TopicsForgotten((NUMBERED,)))
    assert state.sequence == 6
    at_the_end = new_topic_id(6, UUID(int=5))
    behind_the_end = new_topic_id(7, UUID(int=5))
    assert state.fate_of(at_the_end) is TopicFate.FORGOTTEN
    assert state.fate_of(behind_the_end) is TopicFate.UNKNOWN
    assert state.fate_of(FLIGHTS) is TopicFate.ALIVE
    # Tidelog creates no such id in a bucket of this format.
    assert state.fate_of(NOWHERE) is TopicFate.UNKNOWN


def test_in_a_bucket_of_the_first_release_an_unnumbered_topic_was_deleted() -> None:
    """The first release did not remember deleted topics."""
    old = replace(harbour(), cluster=replace(CLUSTER, format_version=1))
    assert old.fate_of(NOWHERE) is TopicFate.DELETED
    assert old.fate_of(new_topic_id(99, NOWHERE)) is TopicFate.UNKNOWN


def test_deleted_and_forgotten_ids_survive_a_snapshot() -> None:
    for state in (deleted(), forgotten(), after(deleted(), 2, TopicsForgotten((NUMBERED,)))):
        restored = decode_snapshot("k", encode_snapshot(state, 0))
        assert restored == state
        assert restored.fate_of(NUMBERED) is state.fate_of(NUMBERED)
        assert restored.is_retired(FIRST) is state.is_retired(FIRST)


@pytest.mark.parametrize("sequence", [-1, 2**48])
def test_an_entry_without_a_number_of_48_bits_creates_no_topic(sequence: int) -> None:
    with pytest.raises(ValueError, match="no number of 48 bits"):
        new_topic_id(sequence, UUID(int=0))


def test_an_id_of_the_first_release_tells_no_entry() -> None:
    assert created_at(UUID(int=0xFFFF_FFFF_FFFF_4FFF_BFFF_FFFF_FFFF_FFFF)) is None
    assert str(NUMBERED) == "00000000-0004-8fff-bfff-ffffffffffff"
