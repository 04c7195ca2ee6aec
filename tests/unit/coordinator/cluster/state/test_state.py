"""The cluster's state: the effect of each record, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from tests.unit.coordinator.cluster.samples import (
    CLUSTER,
    DELAYS,
    FLIGHTS,
    NOWHERE,
    RETIRED,
    WRITER,
    after,
    fenced,
    flights,
    harbour,
    registered,
)
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    ClusterCreated,
    ConfigsChanged,
    ConfigScope,
    CredentialsChanged,
    DrainChanged,
    Endpoint,
    EntryRange,
    IncarnationRetired,
    LeaseResumed,
    ListenersRegistered,
    LogEndAccepted,
    LossAccepted,
    MetadataEntry,
    OffsetRange,
    OpenedTenures,
    PartitionMoved,
    PartitionsCreated,
    ProducerIdsAllocated,
    Record,
    Succession,
    TenuresOpened,
    TopicCreated,
    TopicDeleted,
)
from tidelog.coordinator.cluster.state.draft import InvalidRecord
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import (
    BrokerId,
    Epoch,
    Incarnation,
    LeaderEpoch,
    ProducerId,
    Slot,
    TopicPartition,
)
from tidelog.wal.log.tenure import Tenure, TenureEnd

FIRST = Incarnation(BrokerId(1), Epoch(1))
SECOND = Incarnation(BrokerId(2), Epoch(2))


def empty() -> ClusterState:
    return ClusterState()


def founded() -> ClusterState:
    return after(ClusterState(), None, CLUSTER)


END = TenureEnd(Slot(7), 12)
MOVED_TWICE = PartitionMoved(FLIGHTS, 0, Epoch(2), "h", LeaderEpoch(0), END)
MOVED_LATE = PartitionMoved(FLIGHTS, 0, Epoch(2), None, LeaderEpoch(1), END)


def moved() -> ClusterState:
    """Broker 1 has given partition 0 of flights to broker 2."""
    record = PartitionMoved(FLIGHTS, 0, Epoch(2), None, LeaderEpoch(0), END)
    return after(harbour(), 1, record)


def opened(leader_epoch: int, *partitions: int) -> TenuresOpened:
    return TenuresOpened((OpenedTenures(FLIGHTS, LeaderEpoch(leader_epoch), partitions),))


def created(name: str, *owners: int, topic_id: UUID = NOWHERE) -> TopicCreated:
    return TopicCreated(topic_id, name, tuple(Epoch(owner) for owner in owners))


def given_up(partition: int, handover: str | None, *lost: tuple[int, int]) -> LossAccepted:
    ranges = tuple(OffsetRange(*each) for each in lost)
    return LossAccepted(FLIGHTS, partition, handover, ranges, ("wal/1-1/5.wal",))


def retired(end: int, *successors: Succession) -> IncarnationRetired:
    return IncarnationRetired(Epoch(1), Slot(end), successors)


def drain(epoch: int, *, draining: bool = True) -> DrainChanged:
    return DrainChanged(Epoch(epoch), draining)


USERS = "cluster/credentials/a.json"


def listeners(names: tuple[str, ...] = ("A",), port: int = 9092) -> ListenersRegistered:
    return ListenersRegistered(
        tuple([Endpoint(name, "PLAINTEXT", "b3.example", port) for name in names])
    )


REFUSED: list[tuple[str, Callable[[], ClusterState], int | None, list[Record], str]] = [
    ("entry 0 must create", empty, None, [registered(1)], "entry 0 creates the cluster"),
    ("entry 0 creates only", empty, None, [CLUSTER, registered(1)], "and does nothing else"),
    ("entry 0 has no author", empty, 0, [CLUSTER], "epoch 0, is not registered"),
    ("created twice", harbour, 1, [CLUSTER], "only entry 0"),
    ("created twice, no author", harbour, None, [CLUSTER], "not registered"),
    ("id", empty, None, [ClusterCreated("x" * 22 + "=", 1, 1, 1)], "not a UUID in base64"),
    ("id of 22", empty, None, [ClusterCreated("/" * 22, 1, 1, 1)], "not a UUID in base64"),
    ("version 0", empty, None, [ClusterCreated(CLUSTER.cluster_id, 1, 0, 1)], "begin below 1"),
    ("registered twice", harbour, None, [registered(1)], "incarnation 1-1 is not fenced"),
    ("registered by another", harbour, 2, [registered(1)], "incarnation 1-1 is not fenced"),
    ("two in an entry", founded, None, [registered(1), registered(2)], "only fence its own"),
    ("two by an author", harbour, 1, [registered(3), registered(4)], "already registers"),
    ("first users, late", harbour, None, [CredentialsChanged(USERS)], "not registered"),
    ("no object of users", harbour, 1, [CredentialsChanged("x")], "'x' is not below cluster/cred"),
    ("other users", harbour, 1, [CredentialsChanged(USERS, USERS)], "the credentials are None"),
    ("listeners of none", harbour, 1, [listeners()], "registers no broker before it"),
    ("listeners alone", founded, None, [listeners()], "not registered"),
    ("listeners first", founded, None, [listeners(), registered(3)], "only fence its own"),
    ("no listeners", founded, None, [registered(3), listeners(())], "are not 1 to 64 different"),
    ("same name", founded, None, [registered(3), listeners(("A", "A"))], "different listeners"),
    ("not its own", founded, None, [registered(3), listeners(port=1)], "has the address b3"),
    ("no port", founded, None, [registered(3), listeners(port=0)], "is not an address"),
    ("negative broker id", founded, None, [registered(-1)], "broker id -1 is not in"),
    ("port 0", founded, None, [registered(1, port=0)], "is not an address"),
    ("port 65536", founded, None, [registered(1, port=65536)], "is not an address"),
    ("fence another", harbour, None, [BrokerFenced(Epoch(2)), registered(1)], "own predecessor"),
    ("fence and stay away", harbour, None, [BrokerFenced(Epoch(1))], "not registered"),
    ("fence after", harbour, None, [registered(3), BrokerFenced(Epoch(1))], "not registered"),
    ("topic without author", harbour, None, [created("x", 1)], "author is not registered"),
    ("unknown author", harbour, 9, [created("x", 1)], "epoch 9, is not registered"),
    ("fenced author", fenced, 1, [created("x", 2)], "incarnation 1-1, is fenced"),
    ("after its own end", harbour, 1, [BrokerFenced(Epoch(1)), created("x", 2)], "is fenced"),
    ("fence unknown", harbour, 1, [BrokerFenced(Epoch(9))], "no live incarnation with epoch 9"),
    ("fence twice", fenced, 2, [BrokerFenced(Epoch(1))], "incarnation 1-1 is fenced"),
    ("drain unknown", harbour, 1, [drain(9)], "no live incarnation with epoch 9"),
    ("drain the dead", fenced, 2, [drain(1)], "incarnation 1-1 is fenced"),
    ("drain twice", harbour, 1, [drain(2), drain(2)], "incarnation 2-2 is drained already"),
    ("drain the last", harbour, 1, [drain(2), drain(1)], "only incarnation 1-1 can take"),
    ("undo no drain", harbour, 1, [drain(2, draining=False)], "2-2 is not being drained"),
    ("resume another", harbour, 1, [LeaseResumed(Epoch(2))], "cannot speak for epoch 2"),
    ("retire the living", harbour, 2, [RETIRED], "not that of a fenced incarnation"),
    ("retire twice", fenced, 2, [RETIRED, RETIRED], "not that of a fenced incarnation"),
    ("retire by itself", fenced, 1, [RETIRED], "is fenced"),
    ("negative end", fenced, 2, [retired(-1, *RETIRED.successors)], "cannot end at slot -1"),
    ("forgotten", fenced, 2, [retired(1, RETIRED.successors[0])], "gives 2 .* owned 3"),
    (
        "one too many",
        fenced,
        2,
        [retired(1, *RETIRED.successors, Succession(FLIGHTS, Epoch(2), (1,)))],
        "gives 4 .* owned 3",
    ),
    (
        "given twice",
        fenced,
        2,
        [retired(1, Succession(FLIGHTS, Epoch(2), (0, 0, 2)), RETIRED.successors[1])],
        r"gives 4 partitions \(3 different\) .* owned 3",
    ),
    (
        "not its own",
        fenced,
        2,
        [retired(1, Succession(FLIGHTS, Epoch(2), (0, 1)), RETIRED.successors[1])],
        "must be the same",
    ),
    (
        "to the dead",
        fenced,
        2,
        [retired(1, RETIRED.successors[0], Succession(DELAYS, Epoch(1), (0,)))],
        "1-1 is fenced",
    ),
    ("empty name", harbour, 1, [created("", 1)], "must not be empty"),
    ("dot", harbour, 1, [created(".", 1)], "must not be named"),
    ("dots", harbour, 1, [created("..", 1)], "must not be named"),
    ("long", harbour, 1, [created("x" * 250, 1)], "longer than 249"),
    ("space", harbour, 1, [created("a b", 1)], "other than ASCII letters"),
    ("not ASCII", harbour, 1, [created("flüge", 1)], "other than ASCII letters"),
    ("line end", harbour, 1, [created("a\n", 1)], "other than ASCII letters"),
    ("name taken", harbour, 1, [created("flights", 1)], "is or collides with topic flights"),
    ("collision", harbour, 1, [created("delays_late", 1)], "collides with topic delays.late"),
    ("id taken", harbour, 1, [created("x", 1, topic_id=FLIGHTS)], "is in use"),
    ("no partitions", harbour, 1, [created("x")], "0 partitions are not in"),
    ("owner unknown", harbour, 1, [created("x", 1, 9)], "no live incarnation with epoch 9"),
    ("owner fenced", fenced, 2, [created("x", 1)], "1-1 is fenced"),
    ("grow nothing", harbour, 1, [PartitionsCreated(NOWHERE, (Epoch(1),))], "no topic"),
    ("grow by none", harbour, 1, [PartitionsCreated(FLIGHTS, ())], "from 3 to 3"),
    ("grow to the dead", fenced, 2, [PartitionsCreated(FLIGHTS, (Epoch(1),))], "is fenced"),
    ("delete nothing", harbour, 1, [TopicDeleted(NOWHERE)], "no topic"),
    ("delete twice", harbour, 1, [TopicDeleted(FLIGHTS), TopicDeleted(FLIGHTS)], "no topic"),
    ("not an id", harbour, 1, [ConfigsChanged(ConfigScope.TOPIC, "x", {})], "not a topic id"),
    ("no topic", harbour, 1, [ConfigsChanged(ConfigScope.TOPIC, str(NOWHERE), {})], "no topic"),
    ("no broker", harbour, 1, [ConfigsChanged(ConfigScope.BROKER, "01", {})], "not a broker id"),
    ("no broker id", harbour, 1, [ConfigsChanged(ConfigScope.BROKER, "", {})], "not a broker id"),
    ("big broker", harbour, 1, [ConfigsChanged(ConfigScope.BROKER, "2147483648", {})], "broker id"),
    ("named", harbour, 1, [ConfigsChanged(ConfigScope.CLUSTER, "1", {})], "has no name"),
    ("unnamed", harbour, 1, [ConfigsChanged(ConfigScope.GROUP, "", {})], "1024 bytes, not 0"),
    ("long", harbour, 1, [ConfigsChanged(ConfigScope.GROUP, "g" * 1025, {})], "not 1025"),
    ("open another's", harbour, 2, [opened(0, 0)], "leader epoch 0 of incarnation 1-1, not at"),
    ("open the past", moved, 1, [opened(0, 0)], "leader epoch 1 of incarnation 2-2, not at 0"),
    ("open the future", harbour, 1, [opened(1, 0)], "not at 1 of epoch 1"),
    ("open nothing", harbour, 1, [opened(0, 3)], "has no partition 3"),
    ("open below", harbour, 1, [opened(0, -1)], "has no partition -1"),
    ("move another's", harbour, 2, [PartitionMoved(FLIGHTS, 0, Epoch(2), "h")], "cannot give it"),
    ("move twice", moved, 1, [PartitionMoved(FLIGHTS, 0, Epoch(2), "h")], "cannot give it"),
    ("move to itself", harbour, 1, [PartitionMoved(FLIGHTS, 0, Epoch(1), "h")], "already"),
    ("move to the dead", fenced, 2, [PartitionMoved(FLIGHTS, 1, Epoch(1), "h")], "is fenced"),
    ("move to unknown", harbour, 1, [PartitionMoved(FLIGHTS, 0, Epoch(9), "h")], "no live"),
    ("no end", harbour, 1, [PartitionMoved(FLIGHTS, 0, Epoch(2))], "either the log's end or"),
    ("two ends", harbour, 1, [MOVED_TWICE], "either the log's end or"),
    ("another tenure's end", harbour, 1, [MOVED_LATE], "at leader epoch 0, and cannot end"),
    ("move nothing", harbour, 1, [PartitionMoved(FLIGHTS, 9, Epoch(2), "h")], "no partition 9"),
    ("give up another's", harbour, 2, [given_up(0, "h")], "cannot accept its loss"),
    ("give up to nothing", harbour, 1, [given_up(0, "")], "no image"),
    ("give up an unknown partition", harbour, 1, [given_up(7, "h")], "no partition 7"),
    ("give up twice", harbour, 1, [given_up(0, "h", (5, 9), (9, 10))], "do not ascend"),
    ("give up backwards", harbour, 1, [given_up(0, "h", (5, 4))], "do not ascend"),
    ("lose other entries", harbour, None, [LogEndAccepted(EntryRange(5, 9))], "is entry 4"),
    ("lose the first", harbour, None, [LogEndAccepted(EntryRange(0, 9))], "is entry 4"),
    (
        "lose more than one",
        harbour,
        None,
        [LogEndAccepted(EntryRange(4, 9)), LogEndAccepted(EntryRange(4, 9))],
        "not registered",
    ),
    ("ids twice", harbour, 1, [ProducerIdsAllocated(ProducerId(5), 9)], "id is 0, not 5"),
    ("no ids", harbour, 1, [ProducerIdsAllocated(ProducerId(0), 0)], "0 ids cannot"),
    ("all ids", harbour, 1, [ProducerIdsAllocated(ProducerId(0), 2**63)], "cannot be given out"),
]


@pytest.mark.parametrize(
    ("before", "author", "records", "why"),
    [case[1:] for case in REFUSED],
    ids=[case[0] for case in REFUSED],
)
def test_a_record_that_the_state_does_not_allow_is_refused(
    before: Callable[[], ClusterState], author: int | None, records: list[Record], why: str
) -> None:
    state = before()
    with pytest.raises(InvalidRecord, match=why):
        after(state, author, *records)
    assert state == before()


def test_an_entry_counts_with_all_its_records_or_with_none() -> None:
    state = harbour()
    with pytest.raises(InvalidRecord):
        after(state, 1, TopicDeleted(FLIGHTS), created("new", 1), TopicDeleted(FLIGHTS))
    assert state == harbour()
    assert state.topic_named("flights") is not None


def test_entries_follow_each_other_without_a_gap() -> None:
    with pytest.raises(ValueError, match="entry 9 does not follow 3"):
        harbour().apply(MetadataEntry(9, WRITER, 0, Epoch(1), ()))


def test_the_cluster_after_its_first_entries() -> None:
    state = harbour()
    assert state.sequence == 3
    assert state.cluster_id == CLUSTER.cluster_id
    assert [info.incarnation for info in state.live_brokers()] == [FIRST, SECOND]
    assert state.incarnation(Epoch(2)) == SECOND
    assert state.incarnation(Epoch(3)) is None
    first = state.broker(BrokerId(1))
    assert first is not None
    assert (first.host, first.port) == ("b1.example", 9092)
    assert state.broker(BrokerId(3)) is None
    topic = state.topic_named("flights")
    assert topic is not None
    assert (topic.partition_count, topic.internal) == (3, False)
    assert state.topic_named("delays_late") is None
    assert state.topic_colliding_with("delays_late") is state.topics[DELAYS]
    assert state.configs(ConfigScope.TOPIC, str(FLIGHTS)) == {"retention.ms": "5"}
    assert state.owned_by(Epoch(1)) == (flights(0), flights(2), TopicPartition(DELAYS, 0))
    assert state.tenures(flights(1)) == (Tenure(LeaderEpoch(0), SECOND, None),)
    assert state.leader(flights(3)) is None
    assert state.leader(flights(-1)) is None
    assert state.unopened(Epoch(1)) == ()


def test_each_incarnation_is_known_by_its_newest_entry() -> None:
    state = harbour()
    assert [info.last_entry for info in state.live_brokers()] == [3, 2]
    state = after(state, 2, LeaseResumed(Epoch(2)))
    assert [info.last_entry for info in state.live_brokers()] == [3, 4]


def test_a_fenced_incarnation_keeps_its_partitions_until_it_is_retired() -> None:
    state = fenced()
    assert state.broker(BrokerId(1)) is None
    assert not state.is_live(Epoch(1))
    assert [info.incarnation for info in state.fenced_not_retired()] == [FIRST]
    assert state.leader(flights(0)) == Tenure(LeaderEpoch(0), FIRST, None)

    state = after(state, 2, RETIRED)
    assert state.fenced_not_retired() == ()
    assert state.retired_ends == {1: 17}
    assert state.incarnation(Epoch(1)) == FIRST
    assert state.owned_by(Epoch(1)) == ()
    assert state.tenures(flights(0)) == (
        Tenure(LeaderEpoch(0), FIRST, None),
        Tenure(LeaderEpoch(1), SECOND, None),
    )
    assert state.tenures(flights(1)) == (Tenure(LeaderEpoch(0), SECOND, None),)


def test_a_broker_comes_back_as_another_incarnation() -> None:
    state = after(harbour(), None, BrokerFenced(Epoch(1)), registered(1))
    info = state.broker(BrokerId(1))
    assert info is not None
    assert info.incarnation == Incarnation(BrokerId(1), Epoch(4))
    assert [info.incarnation for info in state.fenced_not_retired()] == [FIRST]


def test_a_broker_may_fence_itself_as_its_last_word() -> None:
    state = after(harbour(), 1, TopicDeleted(DELAYS), BrokerFenced(Epoch(1)))
    assert [info.incarnation for info in state.fenced_not_retired()] == [FIRST]


def test_an_incarnation_that_owns_nothing_is_retired_without_successors() -> None:
    state = after(harbour(), None, registered(3))
    state = after(state, 1, BrokerFenced(Epoch(4)))
    state = after(state, 1, IncarnationRetired(Epoch(4), Slot(0), ()))
    assert state.retired_ends == {4: 0}


def test_a_take_over_may_be_divided_among_several() -> None:
    state = after(fenced(), None, registered(3))
    divided = retired(
        5,
        Succession(FLIGHTS, Epoch(2), (0,)),
        Succession(FLIGHTS, Epoch(5), (2,)),
        Succession(DELAYS, Epoch(5), (0,)),
    )
    state = after(state, 2, divided)
    assert state.owned_by(Epoch(2)) == (flights(0), flights(1))
    assert state.owned_by(Epoch(5)) == (flights(2), TopicPartition(DELAYS, 0))


def test_a_moved_partition_names_the_end_of_the_tenure_before_until_it_is_opened() -> None:
    state = moved()
    assert state.tenures(flights(0)) == (
        Tenure(LeaderEpoch(0), FIRST, None),
        Tenure(LeaderEpoch(1), SECOND, None, END),
    )
    assert state.unopened(Epoch(2)) == ((flights(0), 1),)
    state = after(state, 2, opened(1, 0))
    assert state.tenures(flights(0)) == (Tenure(LeaderEpoch(1), SECOND, None),)
    assert state.unopened(Epoch(2)) == ()
    # A repeated report does no harm.
    assert after(state, 2, opened(1, 0)).topics == state.topics


def test_a_partition_goes_on_behind_a_loss_that_was_accepted() -> None:
    state = harbour()
    for record in (given_up(0, "handover/h", (5, 9)), given_up(2, None)):
        state = after(state, 1, record)
    assert state.tenures(flights(0)) == (Tenure(LeaderEpoch(1), FIRST, "handover/h"),)
    assert state.tenures(flights(2)) == (Tenure(LeaderEpoch(0), FIRST, None),)
    assert [loss.partition for loss in state.losses] == [0, 2]
    assert state.given_up == {"wal/1-1/5.wal"}


def test_entries_that_were_given_up_keep_their_numbers() -> None:
    state, lost = harbour(), LogEndAccepted(EntryRange(4, 5))
    state = after(after(state, None, lost), None, lost)
    assert state.sequence == 5
    assert state.lost_entries == (EntryRange(4, 5),)
    assert [state.is_lost_entry(number) for number in (3, 4, 5, 6)] == [False, True, True, False]


def test_a_tenure_that_never_opened_stays_between_other_tenures() -> None:
    state = after(fenced(), 2, RETIRED)
    state = after(state, None, registered(3))
    state = after(state, 6, BrokerFenced(Epoch(2)))
    third = Succession(FLIGHTS, Epoch(6), (0, 1, 2))
    state = after(
        state,
        6,
        IncarnationRetired(Epoch(2), Slot(3), (third, Succession(DELAYS, Epoch(6), (0,)))),
    )
    assert [t.incarnation.epoch for t in state.tenures(flights(0))] == [1, 2, 6]
    assert [t.leader_epoch for t in state.tenures(flights(0))] == [0, 1, 2]
    assert [t.incarnation.epoch for t in state.tenures(flights(1))] == [2, 6]


def test_a_topic_grows_and_its_old_partitions_keep_their_tenures() -> None:
    state = after(moved(), 1, PartitionsCreated(FLIGHTS, (Epoch(2), Epoch(1))))
    assert state.topics[FLIGHTS].partition_count == 5
    assert state.tenures(flights(0)) == moved().tenures(flights(0))
    assert state.tenures(flights(3)) == (Tenure(LeaderEpoch(0), SECOND, None),)
    assert state.tenures(flights(4)) == (Tenure(LeaderEpoch(0), FIRST, None),)


def test_a_deleted_topic_is_forgotten_and_its_name_free() -> None:
    state = after(harbour(), 2, TopicDeleted(FLIGHTS))
    assert state.topic_named("flights") is None
    assert state.tenures(flights(0)) == ()
    assert state.owned_by(Epoch(2)) == ()
    assert state.configs(ConfigScope.TOPIC, str(FLIGHTS)) == {}
    state = after(state, 1, created("flights", 2))
    assert state.topic_named("flights") == state.topics[NOWHERE]


def test_overrides_replace_each_other_as_a_whole() -> None:
    topic = ConfigsChanged(ConfigScope.TOPIC, str(FLIGHTS), {"a": "1", "b": "2"})
    broker = ConfigsChanged(ConfigScope.BROKER, "2", {"c": "3"})
    cluster = ConfigsChanged(ConfigScope.CLUSTER, "", {"d": "4"})
    state = after(harbour(), 1, topic, broker, cluster)
    assert state.configs(ConfigScope.TOPIC, str(FLIGHTS)) == {"a": "1", "b": "2"}
    assert state.configs(ConfigScope.BROKER, "2") == {"c": "3"}
    assert state.configs(ConfigScope.BROKER, "1") == {}
    assert state.configs(ConfigScope.CLUSTER, "") == {"d": "4"}
    removed = ConfigsChanged(ConfigScope.BROKER, "2", {})
    state = after(state, 2, removed, removed)
    assert state.configs(ConfigScope.BROKER, "2") == {}
    assert list(state.overrides) == [(ConfigScope.CLUSTER, "")]


def test_producer_ids_are_given_out_once() -> None:
    state = after(harbour(), 1, ProducerIdsAllocated(ProducerId(0), 1000))
    state = after(state, 2, ProducerIdsAllocated(ProducerId(1000), 1000))
    assert state.next_producer_id == 2000


def test_states_share_ten_thousand_unchanged_partitions() -> None:
    before = after(harbour(), 1, created("wide", *([1] * 10_000)))
    later = after(before, 1, created("narrow", 1, topic_id=UUID(int=3)))
    assert later.topics[NOWHERE] is before.topics[NOWHERE]
    assert later.brokers is not before.brokers
    assert after(later, 2, ProducerIdsAllocated(ProducerId(0), 1)).topics is later.topics


def test_a_broker_is_known_by_its_listeners() -> None:
    named = (
        Endpoint("CLIENT", "SASL_SSL", "kafka.example", 443),
        Endpoint("BROKERS", "SSL", "b3.example", 9092),
    )
    state = after(harbour(), None, registered(3), ListenersRegistered(named))
    broker = state.broker(BrokerId(3))
    assert broker is not None
    assert broker.endpoint("CLIENT") == named[0]
    assert broker.endpoint("PLAINTEXT") is None
    plain = state.broker(BrokerId(1))
    assert plain is not None
    assert plain.endpoint("PLAINTEXT") == Endpoint("PLAINTEXT", "PLAINTEXT", "b1.example", 9092)
    assert plain.endpoint("CLIENT") is None


def test_a_cluster_may_begin_with_its_users() -> None:
    state = after(founded(), None, CredentialsChanged(USERS))
    assert state.credentials == USERS
    replaced = after(
        after(state, None, registered(1)), 2, CredentialsChanged("cluster/credentials/b", USERS)
    )
    assert replaced.credentials == "cluster/credentials/b"
