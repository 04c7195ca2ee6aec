"""Consumer groups of foreign clients, unmodified: sharing, rebalances, commits, restarts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.compat.kit import group_members
from tests.compat.kit.group_members import GroupMember, Seen
from tests.compat.kit.tools import Tools
from tidelog.coordinator.hashing import partition_for
from tidelog.localstack.broker_process import BrokerProcess

CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka", "java", "kafkajs")
TOOL_OF_CLIENT = {"java": "java", "kafkajs": "npm"}
SETTINGS = {"group.initial.rebalance.delay.ms": 1000}
SECONDS_MAX = 120.0

pytestmark = pytest.mark.compat


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose groups do not wait long for their first members."""
    folder = tmp_path_factory.mktemp("groups")
    (folder / "bucket").mkdir()
    url = f"file://{folder / 'bucket'}"
    with BrokerProcess.start(url, folder / "broker.log", settings=SETTINGS) as process:
        yield process
        assert process.process.poll() is None, "the broker ended during the tests"
        assert process.stop() == 0


@pytest.fixture
def member(request: pytest.FixtureRequest, require_tool: Callable[[str], str]) -> GroupMember:
    """The client named by the test's parameter."""
    name = request.param
    if name in TOOL_OF_CLIENT:
        require_tool(TOOL_OF_CLIENT[name])
    match name:
        case "java":
            return group_members.java(request.getfixturevalue("kafka_lib"))
        case "kafkajs":
            return group_members.kafkajs(request.getfixturevalue("npm_modules"))
    libraries: dict[str, GroupMember] = {
        "confluent-kafka": group_members.confluent,
        "kafka-python": group_members.kafka_python,
        "aiokafka": group_members.aiokafka,
    }
    return libraries[name]


def create_topics(bootstrap: str, **partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(name, num_partitions=count) for name, count in partitions.items()]
    for future in admin.create_topics(wanted).values():
        future.result(30)


def produce(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    """Produce this many records to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count * partitions):
        producer.produce(topic, value=b"%d" % number, partition=number % partitions)
    assert producer.flush(30) == 0


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for the effects of other threads."""
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.parametrize("member", CLIENTS, indirect=True)
def test_a_group_goes_on_at_its_committed_offset(
    group_broker: BrokerProcess, member: GroupMember, request: pytest.FixtureRequest
) -> None:
    name = f"resume-{request.node.callspec.id}"
    create_topics(group_broker.kafka, **{name: 2})
    produce(group_broker.kafka, name, 2, 50)
    first = member(group_broker.kafka, name, name, 40)
    second = member(group_broker.kafka, name, name, 60)
    assert (len(first), len(second)) == (40, 60)
    assert sorted([*first, *second]) == sorted(Seen(p, o) for p in range(2) for o in range(50))


@pytest.mark.parametrize("member", CLIENTS, indirect=True)
def test_groups_and_offsets_survive_the_death_of_the_broker(
    tmp_path: Path, member: GroupMember
) -> None:
    (tmp_path / "bucket").mkdir()
    url, log = f"file://{tmp_path / 'bucket'}", tmp_path / "log"
    with BrokerProcess.start(url, log, settings=SETTINGS) as broker:
        create_topics(broker.kafka, t=2)
        produce(broker.kafka, "t", 2, 50)
        first = member(broker.kafka, "g", "t", 40)
        broker.kill()
    with BrokerProcess.start(url, log, settings=SETTINGS) as broker:
        second = member(broker.kafka, "g", "t", 60)
    assert sorted([*first, *second]) == sorted(Seen(p, o) for p in range(2) for o in range(50))


def test_members_go_on_when_their_broker_dies_and_comes_back(tmp_path: Path) -> None:
    """Two live members have the same generation and assignment. They read every record once, or
    again if a commit was cut off. None is missing."""
    (tmp_path / "bucket").mkdir()
    url, log = f"file://{tmp_path / 'bucket'}", tmp_path / "log"
    broker = BrokerProcess.start(url, log, settings=SETTINGS)
    try:
        create_topics(broker.kafka, t=4)
        produce(broker.kafka, "t", 4, 25)
        with contextlib.ExitStack() as stack:
            members = [
                stack.enter_context(Librdkafka(broker.kafka, "g", ["t"], f"C{n}")) for n in range(2)
            ]
            until(lambda: sum(len(each.seen) for each in members) >= 100, "the first records")
            assigned = [each.assigned() for each in members]
            broker.kill()
            broker = BrokerProcess.start(url, log, settings=SETTINGS, listen=broker.kafka)
            produce(broker.kafka, "t", 4, 25)
            until(lambda: len({s for each in members for s in each.seen}) == 200, "the rest")
            assert [each.assigned() for each in members] == assigned
            assert [each.rebalances for each in members] == [1, 1]
    finally:
        broker.kill()


# Sharing and rebalancing.


class Librdkafka:
    """A confluent-kafka consumer in a separate thread, which commits all that it reads."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        client_id: str,
        **settings: object,
    ) -> None:
        self.seen: list[Seen] = []
        self.revoked: list[TopicPartition] = []
        self.rebalances = 0
        self._held: set[tuple[str, int]] = set()
        self._stopped = threading.Event()
        options = {name.replace("_", "."): value for name, value in settings.items()}
        # In the consumer protocol the broker sets the session timeout.
        timeout = {} if "group.protocol" in options else {"session.timeout.ms": 30_000}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": client_id,
                "log_level": 0,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                "metadata.max.age.ms": 1000,
                # The broker is back before the session ends, even if it took long to start again.
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1000,
                **timeout,
                **options,
            }
        )
        self._consumer.subscribe(list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke)
        self._thread = threading.Thread(target=self._run)

    def _on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self._held |= {(each.topic, each.partition) for each in partitions}

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked += partitions
        self._held -= {(each.topic, each.partition) for each in partitions}

    def _run(self) -> None:
        while not self._stopped.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.seen.append(Seen(message.partition(), message.offset()))
        self._consumer.close()

    def assigned(self) -> list[str]:
        return sorted(f"{topic}p{partition}" for topic, partition in self._held)

    def __enter__(self) -> Librdkafka:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(SECONDS_MAX)


class KafkaPythonMember:
    """A kafka-python consumer in a separate thread."""

    def __init__(
        self, bootstrap: str, group: str, topics: Sequence[str], client_id: str, assignor: Any
    ) -> None:
        self._consumer = KafkaConsumer(
            *topics,
            bootstrap_servers=bootstrap,
            group_id=group,
            client_id=client_id,
            partition_assignment_strategy=[assignor],
            enable_auto_commit=False,
            # A leader whose metadata request is under way when it learns of others' topics does not
            # ask for these before this time.
            metadata_max_age_ms=5_000,
        )
        self._assigned: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._consumer.poll(timeout_ms=100)
            self._assigned = sorted(
                f"{each.topic}p{each.partition}" for each in self._consumer.assignment()
            )
        self._consumer.close()

    def assigned(self) -> list[str]:
        return self._assigned

    def __enter__(self) -> KafkaPythonMember:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(SECONDS_MAX)


def test_two_members_share_and_each_takes_over_from_the_other(group_broker: BrokerProcess) -> None:
    create_topics(group_broker.kafka, shared=4)
    with Librdkafka(group_broker.kafka, "sharing", ["shared"], "A") as one:
        until(lambda: len(one.assigned()) == 4, "alone")
        with Librdkafka(group_broker.kafka, "sharing", ["shared"], "B") as two:
            until(lambda: len(one.assigned()) == len(two.assigned()) == 2, "half each")
            assert not set(one.assigned()) & set(two.assigned())
            produce(group_broker.kafka, "shared", 4, 10)
            until(lambda: len(one.seen) == len(two.seen) == 20, "half of the records each")
        until(lambda: len(one.assigned()) == 4, "alone again")
        assert len({*one.seen, *two.seen}) == 40


def test_new_partitions_are_assigned(group_broker: BrokerProcess) -> None:
    """Clients see the new partitions in their metadata, and the leader joins again."""
    create_topics(group_broker.kafka, growing=1)
    with Librdkafka(group_broker.kafka, "growing", ["growing"], "A") as one:
        until(lambda: len(one.assigned()) == 1, "one partition")
        admin = AdminClient({"bootstrap.servers": group_broker.kafka})
        for future in admin.create_partitions([NewPartitions("growing", 3)]).values():
            future.result(30)
        until(lambda: len(one.assigned()) == 3, "three partitions")


PAIR = {"t0": 3, "t1": 3}
TRIO = {"t0": 1, "t1": 2, "t2": 3}
WORKED_EXAMPLES = {
    "range": (PAIR, [["t0", "t1"]] * 2, "t0p0 t0p1 t1p0 t1p1 | t0p2 t1p2"),
    "roundrobin": (PAIR, [["t0", "t1"]] * 2, "t0p0 t0p2 t1p1 | t0p1 t1p0 t1p2"),
    "roundrobin-uneven": (
        TRIO,
        [["t0"], ["t0", "t1"], ["t0", "t1", "t2"]],
        "t0p0 | t1p0 | t1p1 t2p0 t2p1 t2p2",
    ),
    "sticky-uneven": (
        TRIO,
        [["t0"], ["t0", "t1"], ["t0", "t1", "t2"]],
        "t0p0 | t1p0 t1p1 | t2p0 t2p1 t2p2",
    ),
}
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


@pytest.mark.parametrize(
    ("library", "case"),
    [
        *(("confluent-kafka", case) for case in WORKED_EXAMPLES),
        # Its round robin fails with a KeyError if members subscribe to different topics.
        *(("kafka-python", case) for case in WORKED_EXAMPLES if case != "roundrobin-uneven"),
    ],
)
def test_assignors_agree_with_the_worked_examples(tmp_path: Path, library: str, case: str) -> None:
    """This test has a broker to itself, since the examples fix the topics' names and sizes."""
    topics, subscriptions, expected = WORKED_EXAMPLES[case]
    assignor = case.partition("-")[0]
    if library == "confluent-kafka" and assignor == "sticky":
        # librdkafka has no other sticky assignor.
        assignor = "cooperative-sticky"
    (tmp_path / "bucket").mkdir()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(
            BrokerProcess.start(
                f"file://{tmp_path / 'bucket'}", tmp_path / "log", settings=SETTINGS
            )
        )
        create_topics(broker.kafka, **topics)
        members: list[Librdkafka | KafkaPythonMember] = []
        for number, subscribed in enumerate(subscriptions):
            name = f"C{number}"
            if library == "kafka-python":
                one: Librdkafka | KafkaPythonMember = KafkaPythonMember(
                    broker.kafka, "g", subscribed, name, ASSIGNORS[assignor]
                )
            else:
                options = {"partition_assignment_strategy": assignor}
                one = Librdkafka(broker.kafka, "g", subscribed, name, **options)
            members.append(stack.enter_context(one))

        def found() -> str:
            return " | ".join(" ".join(each.assigned()) for each in members)

        until(lambda: found().count("p") == sum(topics.values()), "an assignment of everything")
        assert found() == expected


def test_cooperative_members_keep_partitions_that_do_not_move(group_broker: BrokerProcess) -> None:
    create_topics(group_broker.kafka, cooperative=4)
    options = {"partition_assignment_strategy": "cooperative-sticky"}
    bootstrap = group_broker.kafka
    with Librdkafka(bootstrap, "cooperating", ["cooperative"], "A", **options) as one:
        until(lambda: len(one.assigned()) == 4, "alone")
        with Librdkafka(bootstrap, "cooperating", ["cooperative"], "B", **options) as two:
            until(lambda: len(two.assigned()) == 2, "half")
            assert len(one.assigned()) == 2
            assert len(one.revoked) == 2


def test_a_custom_assignor_has_its_data_carried_both_ways(group_broker: BrokerProcess) -> None:
    """The user data of each member reach the leader unchanged, and the members get their
    assignments."""
    create_topics(group_broker.kafka, weighted=3)
    seen: dict[str, bytes] = {}

    class ByWeight(RangePartitionAssignor):
        name = "by-weight"
        weight = b""

        @classmethod
        def assign(cls, cluster: Any, members: Any) -> Any:
            for each in members:
                seen[each.member_id] = bytes(each.metadata.user_data)
            return RangePartitionAssignor.assign(cluster, members)

        @classmethod
        def metadata(cls, topics: Any) -> Any:
            subscription = RangePartitionAssignor.metadata(topics)
            subscription.user_data = cls.weight
            return subscription

    def weighing(weight: bytes) -> Any:
        return type("Weighing", (ByWeight,), {"weight": weight})

    weights = [b"\x00rack-1\xff", b"weight=7"]
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(
                KafkaPythonMember(
                    group_broker.kafka, "weighing", ["weighted"], f"C{n}", weighing(weight)
                )
            )
            for n, weight in enumerate(weights)
        ]
        until(lambda: sum(len(each.assigned()) for each in members) == 3, "an assignment")
        until(lambda: sorted(seen.values()) == sorted(weights), "both members' data")


# Kafka's own tools, which also read the records of the internal topic.

GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def test_kafkas_group_tool_lists_describes_resets_and_deletes(
    group_broker: BrokerProcess, kafka_lib: Path
) -> None:
    tool = Tools(kafka_lib, group_broker.kafka).run
    create_topics(group_broker.kafka, tooled=2)
    produce(group_broker.kafka, "tooled", 2, 50)
    group_members.confluent(group_broker.kafka, "tooled", "tooled", 100)
    assert "tooled" in tool(GROUPS_TOOL, "--list").splitlines()
    group = ("--group", "tooled")
    lines = [line.split() for line in tool(GROUPS_TOOL, "--describe", *group).splitlines()]
    offsets = {(w[1], w[2]): w[3:6] for w in lines if w[:1] == ["tooled"]}
    assert offsets == {("tooled", "0"): ["50", "50", "0"], ("tooled", "1"): ["50", "50", "0"]}
    assert "Empty" in tool(GROUPS_TOOL, "--describe", "--state", *group)
    reset = ("--reset-offsets", "--to-offset", "20", "--topic", "tooled", "--execute")
    tool(GROUPS_TOOL, *reset, *group)
    assert tool(GROUPS_TOOL, "--describe", *group).count(" 30 ") == 2
    removed = ("--delete-offsets", "--topic", "tooled:1")
    assert "Successful" in tool(GROUPS_TOOL, *removed, *group)
    assert "successful" in tool(GROUPS_TOOL, "--delete", *group)
    assert "tooled" not in tool(GROUPS_TOOL, "--list").splitlines()


def test_kafkas_formatters_read_the_internal_topic(
    group_broker: BrokerProcess, kafka_lib: Path
) -> None:
    """Keys and values are in Kafka's own format."""
    create_topics(group_broker.kafka, read=1)
    produce(group_broker.kafka, "read", 1, 20)
    group_members.confluent(group_broker.kafka, "read", "read", 20)
    tools = Tools(kafka_lib, group_broker.kafka)
    place = "__consumer_offsets", partition_for("read", 50)
    offsets = tools.formatted(*place, "OffsetsMessageFormatter")
    assert any(
        each["key"]["data"] == {"group": "read", "topic": "read", "partition": 0}
        and each["value"]["data"]["offset"] == 20
        for each in offsets
    ), offsets
    groups = tools.formatted(*place, "GroupMetadataMessageFormatter")
    assert any(
        each["key"]["data"] == {"group": "read"}
        and each["value"]["data"]["protocol"] == "range"
        and each["value"]["data"]["members"][0]["memberId"].startswith("rdkafka-")
        for each in groups
        if each["value"] and each["value"]["data"]["members"]
    ), groups
