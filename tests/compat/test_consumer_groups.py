"""Consumer groups of KIP-848 (`group.protocol=consumer`) of foreign clients, unmodified."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.compat.kit import group_members
from tests.compat.kit.group_members import CONSUMER, GroupMember, Seen
from tests.compat.kit.tools import Tools
from tests.compat.test_groups import (
    GROUPS_TOOL,
    Librdkafka,
    create_topics,
    produce,
    until,
)
from tidelog.coordinator.hashing import partition_for
from tidelog.localstack.broker_process import BrokerProcess

CLIENTS = ("confluent-kafka", "java")
SETTINGS = {
    "group.initial.rebalance.delay.ms": 1000,
    "group.consumer.heartbeat.interval.ms": 500,
    # Short for tests that wait for a member's death, but long enough for members on a busy machine.
    "group.consumer.session.timeout.ms": 15_000,
}
PROTOCOL = {"group_protocol": CONSUMER}

pytestmark = pytest.mark.compat


@pytest.fixture(scope="module")
def consumer_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose members learn soon of changes."""
    folder = tmp_path_factory.mktemp("consumer-groups")
    (folder / "bucket").mkdir()
    url = f"file://{folder / 'bucket'}"
    with BrokerProcess.start(url, folder / "broker.log", settings=SETTINGS) as process:
        yield process
        assert process.process.poll() is None, "the broker ended during the tests"
        assert process.stop() == 0


@pytest.fixture
def member(request: pytest.FixtureRequest, require_tool: Callable[[str], str]) -> GroupMember:
    """The client named by the test's parameter."""
    if request.param == "java":
        require_tool("java")
        return group_members.java(request.getfixturevalue("kafka_lib"), CONSUMER)

    def confluent(bootstrap: str, group: str, topic: str, count: int) -> list[Seen]:
        return group_members.confluent(bootstrap, group, topic, count, CONSUMER)

    return confluent


class JavaMember:
    """A Java member that reads on until it is killed."""

    def __init__(self, lib: Path, bootstrap: str, group: str, topic: str) -> None:
        self.seen: list[Seen] = []
        self.process = subprocess.Popen(
            [*group_members.java_program(lib), bootstrap, group, topic, "1000000", CONSUMER],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(Seen(*map(int, line.split("\t"))))

    def __enter__(self) -> JavaMember:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("member", CLIENTS, indirect=True)
def test_a_group_goes_on_at_its_committed_offset(
    consumer_broker: BrokerProcess, member: GroupMember, request: pytest.FixtureRequest
) -> None:
    name = f"resume-{request.node.callspec.id}"
    create_topics(consumer_broker.kafka, **{name: 2})
    produce(consumer_broker.kafka, name, 2, 50)
    first = member(consumer_broker.kafka, name, name, 40)
    second = member(consumer_broker.kafka, name, name, 60)
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
    """Both members keep their partitions: none is revoked, and no record is missing."""
    (tmp_path / "bucket").mkdir()
    url, log = f"file://{tmp_path / 'bucket'}", tmp_path / "log"
    broker = BrokerProcess.start(url, log, settings=SETTINGS)
    try:
        create_topics(broker.kafka, t=4)
        with (
            Librdkafka(broker.kafka, "g", ["t"], "A", **PROTOCOL) as one,
            Librdkafka(broker.kafka, "g", ["t"], "B", **PROTOCOL) as two,
        ):
            until(lambda: len(one.assigned()) == len(two.assigned()) == 2, "half each")
            produce(broker.kafka, "t", 4, 25)
            until(lambda: len({*one.seen, *two.seen}) == 100, "the first records")
            before = one.assigned(), two.assigned(), len(one.revoked), len(two.revoked)
            broker.kill()
            broker = BrokerProcess.start(url, log, settings=SETTINGS, listen=broker.kafka)
            produce(broker.kafka, "t", 4, 25)
            until(lambda: len({*one.seen, *two.seen}) == 200, "the rest")
            after = one.assigned(), two.assigned(), len(one.revoked), len(two.revoked)
            assert after == before
    finally:
        broker.kill()


def test_two_members_share_and_each_takes_over_from_the_other(
    consumer_broker: BrokerProcess,
) -> None:
    """A partition that stays with its member is not revoked, and no record is read twice."""
    create_topics(consumer_broker.kafka, shared=4)
    bootstrap = consumer_broker.kafka
    with Librdkafka(bootstrap, "sharing", ["shared"], "A", **PROTOCOL) as one:
        until(lambda: len(one.assigned()) == 4, "alone")
        with Librdkafka(bootstrap, "sharing", ["shared"], "B", **PROTOCOL) as two:
            until(lambda: len(one.assigned()) == len(two.assigned()) == 2, "half each")
            assert not set(one.assigned()) & set(two.assigned())
            assert len(one.revoked) == 2
            produce(bootstrap, "shared", 4, 10)
            until(lambda: len(one.seen) == len(two.seen) == 20, "half of the records each")
        until(lambda: len(one.assigned()) == 4, "alone again")
        produce(bootstrap, "shared", 4, 10)
        until(lambda: len(one.seen) == 60, "all of the others")
        assert len({*one.seen, *two.seen}) == 80


def test_a_java_member_shares_with_another_and_is_missed_when_it_dies(
    consumer_broker: BrokerProcess, kafka_lib: Path
) -> None:
    create_topics(consumer_broker.kafka, mixed=4)
    bootstrap = consumer_broker.kafka
    with Librdkafka(bootstrap, "mixing", ["mixed"], "A", **PROTOCOL) as one:
        until(lambda: len(one.assigned()) == 4, "alone")
        with JavaMember(kafka_lib, bootstrap, "mixing", "mixed") as two:
            until(lambda: len(one.assigned()) == 2, "half each")
            produce(bootstrap, "mixed", 4, 10)
            until(lambda: len(one.seen) == len(two.seen) == 20, "half of the records each")
            assert not {each.partition for each in one.seen} & {e.partition for e in two.seen}
        until(lambda: len(one.assigned()) == 4, "alone again")


@pytest.mark.parametrize(
    ("assignor", "expected"),
    [("uniform", {2: 2}), ("range", {1: 1, 3: 1})],
)
def test_members_choose_an_assignor_of_the_server(
    consumer_broker: BrokerProcess, assignor: str, expected: dict[int, int]
) -> None:
    """The topics have one and three partitions. An assignor spreads both topics evenly, or each
    topic by itself."""
    few, more = f"few-{assignor}", f"more-{assignor}"
    create_topics(consumer_broker.kafka, **{few: 1, more: 3})
    options = {"group_remote_assignor": assignor, **PROTOCOL}
    bootstrap, group = consumer_broker.kafka, f"by-{assignor}"
    with (
        Librdkafka(bootstrap, group, [few, more], "A", **options) as one,
        Librdkafka(bootstrap, group, [few, more], "B", **options) as two,
    ):
        until(lambda: bool(one.assigned() and two.assigned()), "a share each")
        until(lambda: len(one.assigned()) + len(two.assigned()) == 4, "everything")
        sizes = [len(one.assigned()), len(two.assigned())]
        assert {size: sizes.count(size) for size in sizes} == expected


def test_new_partitions_and_topics_are_assigned(consumer_broker: BrokerProcess) -> None:
    """The topic does not exist at the subscription. Later it gets more partitions."""
    bootstrap = consumer_broker.kafka
    create_topics(bootstrap, ready=1)
    with Librdkafka(bootstrap, "growing-848", ["ready", "not-yet"], "A", **PROTOCOL) as one:
        until(lambda: len(one.assigned()) == 1, "the present partition")
        create_topics(bootstrap, **{"not-yet": 1})
        until(lambda: len(one.assigned()) == 2, "the new topic")
        grow(bootstrap, "not-yet", 3)
        until(lambda: len(one.assigned()) == 4, "the new partitions")


def grow(bootstrap: str, topic: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_partitions([NewPartitions(topic, count)]).values():
        future.result(30)


def test_the_broker_resolves_a_java_clients_regular_expression(
    consumer_broker: BrokerProcess, kafka_lib: Path
) -> None:
    create_topics(consumer_broker.kafka, **{"re-one": 1, "re-two": 1, "not-re-three": 1})
    for topic in ("re-one", "re-two", "not-re-three"):
        produce(consumer_broker.kafka, topic, 1, 10)
    member = group_members.java(kafka_lib, CONSUMER)
    seen = member(consumer_broker.kafka, "expressions", "re-.*", 20)
    assert sorted(seen) == sorted([Seen(0, offset) for offset in range(10)] * 2)


@pytest.mark.parametrize("member", CLIENTS, indirect=True)
def test_a_group_without_members_goes_from_one_protocol_to_the_other_and_back(
    consumer_broker: BrokerProcess, member: GroupMember, request: pytest.FixtureRequest
) -> None:
    name = f"moving-{request.node.callspec.id}"
    create_topics(consumer_broker.kafka, **{name: 1})
    produce(consumer_broker.kafka, name, 1, 30)
    classic = group_members.confluent(consumer_broker.kafka, name, name, 10)
    consumer = member(consumer_broker.kafka, name, name, 10)
    again = group_members.confluent(consumer_broker.kafka, name, name, 10)
    assert [each.offset for each in [*classic, *consumer, *again]] == list(range(30))


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_members_restarted_one_by_one_take_their_group_to_the_other_protocol_and_back(
    consumer_broker: BrokerProcess, kafka_lib: Path, assignor: str
) -> None:
    bootstrap, name = consumer_broker.kafka, f"rolling-{assignor}"
    tool = Tools(kafka_lib, bootstrap).run
    create_topics(bootstrap, **{name: 4})
    classic = {"partition_assignment_strategy": assignor}
    seen: set[Seen] = set()

    def start(protocol: dict[str, str]) -> Librdkafka:
        return Librdkafka(bootstrap, name, [name], "member", **protocol)

    def read_all(end: int, *members: Librdkafka) -> None:
        """Wait until each member has a share, and the members together have read all records."""
        held = lambda: [place for each in members for place in each.assigned()]  # noqa: E731
        until(lambda: len(held()) == len(set(held())) == 4, "each partition has one owner")
        until(lambda: all(each.assigned() for each in members), "each member has a share")
        produce(bootstrap, name, 4, 50)
        wanted = {Seen(p, o) for p in range(4) for o in range(end)}
        until(lambda: wanted <= seen.union(*(each.seen for each in members)), "all is read")
        for each in members:
            seen.update(each.seen)

    def protocol() -> str:
        listed = tool(GROUPS_TOOL, "--list", "--type", "classic")
        return "classic" if name in listed.split() else "consumer"

    with start(classic) as one:
        with start(classic) as two:
            read_all(50, one, two)
            assert protocol() == "classic"
        with start(PROTOCOL) as three:
            read_all(100, one, three)
            assert protocol() == "consumer"
    with contextlib.ExitStack() as stack:
        four = stack.enter_context(start(PROTOCOL))
        read_all(150, four)
        with start(classic) as five:
            read_all(200, four, five)
            assert protocol() == "consumer"
            stack.close()
            read_all(250, five)
            assert protocol() == "classic"


# Kafka's own tools, which also read the records of the internal topic.


def test_kafkas_group_tool_lists_describes_resets_and_deletes(
    consumer_broker: BrokerProcess, kafka_lib: Path
) -> None:
    tools = Tools(kafka_lib, consumer_broker.kafka)
    tool = tools.run
    bootstrap, group = consumer_broker.kafka, ("--group", "tooled")
    create_topics(bootstrap, tooled=2)
    produce(bootstrap, "tooled", 2, 50)
    with Librdkafka(bootstrap, "tooled", ["tooled"], "A", **PROTOCOL) as one:
        until(lambda: len(one.seen) == 100, "all records")
        until(lambda: tool(GROUPS_TOOL, "--describe", *group).count(" 50 ") >= 4, "commits")
        listed = tool(GROUPS_TOOL, "--list", "--type", "consumer")
        assert [line.split() for line in listed.splitlines() if "tooled" in line] == [
            ["tooled", "Consumer"]
        ]
        described = tool(GROUPS_TOOL, "--describe", "--members", "--verbose", *group)
        assert described.count("tooled:0,1") == 2, "the assignment and its target"
        state = tool(GROUPS_TOOL, "--describe", "--state", *group)
        assert [part for part in ("uniform", "Stable") if part in state] == ["uniform", "Stable"]
        assert "The group is not empty" in tool(GROUPS_TOOL, "--delete", *group)
    reset = ("--reset-offsets", "--to-offset", "20", "--topic", "tooled", "--execute")
    tool(GROUPS_TOOL, *reset, *group)
    assert tool(GROUPS_TOOL, "--describe", *group).count(" 30 ") == 2
    assert "successful" in tool(GROUPS_TOOL, "--delete", *group)
    assert "tooled" not in tool(GROUPS_TOOL, "--list").splitlines()


def test_kafkas_deserializers_read_the_internal_topic(
    consumer_broker: BrokerProcess, kafka_lib: Path
) -> None:
    """Kafka's formatters print groups and offsets only, and skip the other kinds of records."""
    create_topics(consumer_broker.kafka, read=1)
    produce(consumer_broker.kafka, "read", 1, 20)
    group_members.confluent(consumer_broker.kafka, "read", "read", 20, CONSUMER)
    tools = Tools(kafka_lib, consumer_broker.kafka)
    place = "__consumer_offsets", partition_for("read", 50)
    offsets = tools.formatted(*place, "OffsetsMessageFormatter")
    assert any(
        each["key"]["data"]["group"] == "read" and each["value"]["data"]["offset"] == 20
        for each in offsets
    ), offsets
