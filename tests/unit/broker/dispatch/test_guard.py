"""The guard: requests that are allowed in part, hidden names, and noted denials."""

from __future__ import annotations

import asyncio
import json
import logging
from uuid import UUID

import pytest

from tests.unit.broker.guarded import ADMIN, ALICE, HOST, GuardedBroker, codes, guarded_broker
from tests.unit.broker.one_broker import batch, run, until
from tests.unit.broker.peers.several import create, new_world, refreshed
from tests.unit.coordinator.cluster.acls import rule
from tidelog.broker.append.adopter import Adopted, Adopter
from tidelog.broker.handlers.request_context import CloseConnection
from tidelog.broker.partitions.partitions import Partition
from tidelog.coordinator.cluster.log.view_renewal import ViewRenewal
from tidelog.coordinator.cluster.records.records import TopicCreated
from tidelog.coordinator.internal_topics import GROUP_TOPIC
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidelog.protocol.schemas.cluster.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tidelog.protocol.schemas.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from tidelog.protocol.schemas.coordinators import FindCoordinatorRequest
from tidelog.protocol.schemas.fetch import (
    FetchablePartitionResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tidelog.protocol.schemas.groups import DescribeGroupsRequest
from tidelog.protocol.schemas.own.adopt import AdoptPartition, AdoptRequest, AdoptTopic
from tidelog.protocol.schemas.own.drains import BrokerDrain, DrainBrokersRequest
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.schemas.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from tidelog.security.acl_codes import CLUSTER_NAME, OPERATIONS, AclOperation, ResourceType
from tidelog.security.principal import Principal

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
MINE, OTHER = "mine", "other"


def produce_to(*names: str, acks: int = -1) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=5000,
        topic_data=[
            TopicProduceData(
                name=name, partition_data=[PartitionProduceData(index=0, records=batch(b"x"))]
            )
            for name in names
        ],
    )


def fetch_of(*names: str, wait_ms: int = 0, **more: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[
            FetchTopic(
                topic=name, partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)]
            )
            for name in names
        ],
        **more,
    )


def by_topic(response: FetchResponse) -> dict[str, FetchablePartitionResponse]:
    return {topic.topic: topic.partitions[0] for topic in response.responses}


async def two_topics(broker: GuardedBroker) -> tuple[UUID, UUID]:
    return await broker.one.create_topic(MINE), await broker.one.create_topic(OTHER)


def test_a_produce_appends_to_allowed_topics_and_refuses_the_rest() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            broker.allow(rule("WRITE", MINE), rule("READ", "*"))
            answer = await broker.ask(produce_to(OTHER, MINE), 9)
            found = {each.name: each.partition_responses[0] for each in answer.responses}
            assert (found[MINE].error_code, found[MINE].base_offset) == (0, 0)
            assert (found[OTHER].error_code, found[OTHER].base_offset) == (REFUSED, -1)
            assert found[OTHER].error_message == "Topic authorization failed."
            fetched = by_topic(await broker.ask(fetch_of(MINE, OTHER), 12))
            assert [fetched[name].high_watermark for name in (MINE, OTHER)] == [1, 0]
            errors = broker.one.broker.metrics.api("Produce").errors
            assert errors.of(REFUSED.name).value == 1

    run(main)


@pytest.mark.parametrize("version", [9, 13])
def test_a_produce_that_was_allowed_is_refused_when_the_rules_or_its_client_change(
    version: int,
) -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            mine, other = await two_topics(broker)
            ids = {MINE: mine, OTHER: other}

            async def ask(*names: str, principal: Principal = ALICE, host: str = HOST) -> set[int]:
                request = produce_to(*names)
                for topic in request.topic_data:
                    topic.topic_id = ids[topic.name]
                return set(codes(await broker.ask(request, version, principal, host)))

            allow, deny = rule("WRITE", "*", host=HOST), rule("WRITE", OTHER, deny=True)
            broker.allow(allow)
            for _ in range(2):
                assert await ask(MINE, OTHER) == set()
                assert await ask(MINE, host="10.0.0.9") == {REFUSED}
                assert await ask(MINE, principal=Principal("bob")) == {REFUSED}
            broker.allow(allow, deny)
            for _ in range(2):
                assert await ask(MINE) == set()
                assert await ask(MINE, OTHER) == {REFUSED}

    run(main)


def test_transactional_records_need_their_permission_after_plain_records() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            broker.allow(rule("WRITE", MINE))
            assert not codes(await broker.ask(produce_to(MINE), 9))
            request = produce_to(MINE)
            request.transactional_id = MINE
            request.topic_data[0].partition_data[0].records = batch(
                b"x", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
            )
            answer = await broker.ask(request, 9)
            assert codes(answer) == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}

    run(main)


def test_a_producer_that_wants_no_answer_loses_its_connection() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            broker.allow(rule("WRITE", MINE), rule("READ", "*"))
            assert await broker.answer(produce_to(MINE, acks=0), 9) is None
            for names in ((OTHER,), (MINE, OTHER)):
                with pytest.raises(CloseConnection):
                    await broker.answer(produce_to(*names, acks=0), 9)
            # As in Kafka, the allowed part was appended.
            await broker.one.broker.services.durable()
            assert (await broker.one.read_all(topic=MINE))[-1].offset == 1
            assert await broker.one.read_all(topic=OTHER) == []

    run(main)


def test_transactional_records_without_a_transactional_id_are_refused_to_everyone() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            request = produce_to(MINE)
            records = batch(
                b"x", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
            )
            request.topic_data[0].partition_data[0].records = records
            for principal in (ADMIN, ALICE):
                answer = await broker.ask(request, 9, principal)
                assert codes(answer) == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}

    run(main)


def test_a_fetch_session_serves_the_topics_allowed_at_each_request() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            await broker.one.produce(batch(b"a"), topic=MINE)
            await broker.one.produce(batch(b"b"), topic=OTHER)
            broker.allow(rule("READ", MINE))
            first = await broker.ask(fetch_of(MINE, OTHER, session_epoch=0), 12)
            assert first.session_id
            found = by_topic(first)
            assert found[MINE].records
            assert found[OTHER].error_code == REFUSED
            assert not found[OTHER].records
            # The next request names no partition: the session has them.
            broker.allow(rule("READ", OTHER))
            again = fetch_of(session_id=first.session_id, session_epoch=1)
            found = by_topic(await broker.ask(again, 12))
            assert found[MINE].error_code == REFUSED
            assert found[OTHER].records

    run(main)


def test_a_fetch_that_waits_gets_nothing_that_may_not_be_read_any_more() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            broker.allow(rule("READ", MINE))
            waiting = asyncio.ensure_future(broker.ask(fetch_of(MINE, wait_ms=20_000), 12))
            partition = broker.one.broker.services.data.partitions.named(MINE, 0)
            await until(lambda: partition.readers.waiters)
            broker.allow()
            await broker.one.produce(batch(b"secret"), topic=MINE)
            found = by_topic(await waiting)[MINE]
            assert found.error_code == REFUSED
            assert not found.records

    run(main)


def test_partitions_are_added_to_a_transaction_all_or_none() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            broker.allow(rule("WRITE", MINE), rule("WRITE", "t", of="TRANSACTIONAL_ID"))
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="t",
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in (MINE, OTHER)
                ],
            )
            answer = await broker.ask(request, 3)
            assert {
                each.name: each.results_by_partition[0].partition_error_code
                for each in answer.results_by_topic_v3_and_below
            } == {MINE: ErrorCode.OPERATION_NOT_ATTEMPTED, OTHER: REFUSED}

    run(main)


def test_a_deleted_topic_is_named_to_clients_that_may_describe_the_topic() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            mine, other = await two_topics(broker)

            async def delete(*asked: DeleteTopicState) -> list[tuple[str | None, int]]:
                answer = await broker.ask(DeleteTopicsRequest(topics=[*asked]), 6)
                return [(each.name, each.error_code) for each in answer.responses]

            by_id = [DeleteTopicState(topic_id=mine), DeleteTopicState(topic_id=other)]
            broker.allow(rule("DESCRIBE", MINE))
            assert await delete(*by_id) == [(MINE, REFUSED), (None, REFUSED)]
            by_name = [DeleteTopicState(name=MINE), DeleteTopicState(name="nowhere")]
            # Only clients that may see a topic learn whether it exists.
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert await delete(*by_name) == [(MINE, REFUSED), ("nowhere", REFUSED)]
            broker.allow(rule("DESCRIBE", "*"))
            assert sorted(await delete(*by_name), key=str) == [
                (MINE, REFUSED),
                ("nowhere", unknown),
            ]
            broker.allow(rule("DELETE", MINE))
            assert sorted(await delete(*by_id), key=str) == [(MINE, 0), (None, REFUSED)]
            broker.allow(rule("DELETE", CLUSTER_NAME, of="CLUSTER"))
            assert await delete(DeleteTopicState(name=OTHER)) == [(OTHER, 0)]

    run(main)


@pytest.mark.parametrize("by_id", [False, True])
def test_a_topic_that_the_broker_does_not_know_yet_is_not_deleted_without_permission(
    by_id: bool,
) -> None:
    """The guard asks by the broker's view. The handler reads the metadata log to its end."""

    async def story() -> None:
        world = new_world()
        async with world.broker(0) as knowing, world.broker(1) as lagging:
            broker = GuardedBroker(lagging)
            broker.allow(rule("DESCRIBE", OTHER))
            knowing.broker.coordination.admissions._peers._hints.ask = lambda *_: None

            async def delete() -> DeletableTopicResult:
                topic_id = await create(knowing, OTHER, knowing)
                assert topic_id not in lagging.broker.membership.metadata.state.topics
                asked = DeleteTopicState(**{"topic_id": topic_id} if by_id else {"name": OTHER})
                answer = await broker.ask(DeleteTopicsRequest(topics=[asked]), 6)
                (result,) = answer.responses
                return result

            result = await delete()
            assert (result.name, result.error_code) == (None if by_id else OTHER, REFUSED)
            await refreshed(knowing)
            assert knowing.broker.membership.metadata.state.topic_named(OTHER) is not None

    run(story)


def test_a_topic_that_comes_during_an_adopt_is_not_written_without_permission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guard does not know the second topic. It is created while the first is served."""
    late_id = UUID(int=7)

    async def story() -> None:
        async with guarded_broker() as broker:
            mine = await broker.one.create_topic(MINE)
            broker.allow(rule("WRITE", MINE), rule("WRITE", "sink", of="TRANSACTIONAL_ID"))
            metadata = broker.one.broker.membership.metadata
            epoch = broker.one.broker.membership.incarnation.epoch
            written = []

            async def adopt(_: Adopter, partition: Partition, *_more: object) -> Adopted:
                written.append(partition.topic_name)
                if len(written) == 1:
                    late = TopicCreated(late_id, OTHER, (epoch,), {})
                    await metadata.append(epoch, lambda _: (late,))
                return Adopted(-1, 0)

            monkeypatch.setattr(Adopter, "adopt", adopt)
            partitions = [AdoptPartition(partition_index=0, staged_ids=[UUID(int=1)])]
            topics = [AdoptTopic(topic_id=each, partitions=partitions) for each in (mine, late_id)]
            request = AdoptRequest(transactional_id="sink", producer_id=5, topics=topics)
            answer = await broker.ask(request, 0)
            codes = [each.partitions[0].error_code for each in answer.topics]
            assert (codes, written) == ([0, REFUSED], [MINE])

    run(story)


def test_a_topic_that_comes_while_others_are_created_is_not_shown_without_permission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker reads the metadata log when it creates the missing topic."""

    async def not_renewed(*_: object, **__: object) -> None:
        """The store did not answer: the view is as it was."""

    async def story() -> None:
        world = new_world()
        async with world.broker(0) as knowing, world.broker(1) as lagging:
            broker = GuardedBroker(lagging)
            broker.allow(rule("DESCRIBE", MINE), rule("CREATE", MINE))
            knowing.broker.coordination.admissions._peers._hints.ask = lambda *_: None
            monkeypatch.setattr(ViewRenewal, "renewed", not_renewed)
            topic_id = await create(knowing, OTHER, knowing)
            assert topic_id not in lagging.broker.membership.metadata.state.topics
            asked = [MetadataRequestTopic(name=None, topic_id=topic_id)]
            asked += [MetadataRequestTopic(name=MINE)]
            request = MetadataRequest(topics=asked, allow_auto_topic_creation=True)
            answer = await broker.ask(request, 12)
            assert topic_id in lagging.broker.membership.metadata.state.topics
            found = {each.topic_id == topic_id: each for each in answer.topics}
            assert found[False].name == MINE
            assert (found[True].name, found[True].error_code) == (None, REFUSED)
            assert found[True].partitions == []

    run(story)


def test_a_created_topics_settings_are_shown_to_clients_that_may_read_settings() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            broker.allow(rule("CREATE", CLUSTER_NAME, of="CLUSTER"), rule("ALTER_CONFIGS", MINE))
            topics = [
                CreatableTopic(name=name, num_partitions=1, replication_factor=1)
                for name in (MINE, OTHER)
            ]
            answer = await broker.ask(CreateTopicsRequest(topics=topics), 7)
            mine, other = sorted(answer.topics, key=lambda each: each.name)
            assert (mine.error_code, mine.num_partitions, mine.topic_config_error_code) == (0, 1, 0)
            assert mine.configs
            assert (other.error_code, other.num_partitions, other.configs) == (0, -1, [])
            assert other.topic_config_error_code == REFUSED
            assert other.replication_factor == -1

    run(main)


def metadata_of(*names: str, creating: bool = True) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=creating,
    )


def named(answer: MetadataResponse) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in answer.topics}


@pytest.mark.parametrize("version", [0, 1, 4, 9, 13])
def test_metadata_names_brokers_and_refuses_topics_that_may_not_be_seen(version: int) -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            answer = await broker.ask(metadata_of(MINE, OTHER, "nowhere"), version)
            assert named(answer) == dict.fromkeys((MINE, OTHER, "nowhere"), REFUSED)
            # The topic's id is refused too: no topic has this id.
            assert {topic.topic_id for topic in answer.topics} == {UUID(int=0)}
            assert len(answer.brokers) == 1
            assert broker.one.broker.membership.state().topic_named("nowhere") is None
            broker.allow(rule("DESCRIBE", MINE))
            assert named(await broker.ask(metadata_of(MINE, OTHER), version)) == {
                MINE: 0,
                OTHER: REFUSED,
            }

    run(main)


def test_metadata_by_id_does_not_tell_the_name() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            mine, _ = await two_topics(broker)
            unknown = UUID(int=7)
            asked = [MetadataRequestTopic(name=None, topic_id=each) for each in (mine, unknown)]
            (refused, missing) = sorted(
                (await broker.ask(MetadataRequest(topics=asked), 12)).topics,
                key=lambda topic: topic.topic_id == unknown,
            )
            assert (refused.name, refused.topic_id, refused.error_code) == (None, mine, REFUSED)
            assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(main)


def test_a_topic_is_created_automatically_for_clients_that_may_create_topics() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:

            def exists(name: str) -> bool:
                return broker.one.broker.membership.state().topic_named(name) is not None

            broker.allow(rule("DESCRIBE", "*"))
            assert named(await broker.ask(metadata_of("new"), 9)) == {"new": REFUSED}
            assert not exists("new")
            broker.allow(rule("DESCRIBE", "*"), rule("CREATE", "n", prefixed=True))
            answer = await broker.ask(metadata_of("new", "elsewhere"), 9)
            assert named(answer) == {"new": 0, "elsewhere": REFUSED}
            assert exists("new")
            broker.allow(rule("DESCRIBE", "*"), rule("CREATE", CLUSTER_NAME, of="CLUSTER"))
            assert named(await broker.ask(metadata_of("elsewhere"), 9)) == {"elsewhere": 0}

    run(main)


def test_a_page_of_topics_has_the_visible_topics_and_refuses_named_hidden_topics() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            broker.allow(rule("DESCRIBE", MINE))
            page = await broker.ask(DescribeTopicPartitionsRequest(), 0)
            assert [topic.name for topic in page.topics] == [MINE]
            assert page.next_cursor is None
            asked = [DescribeTopicPartitionsTopic(name=name) for name in (MINE, OTHER)]
            page = await broker.ask(DescribeTopicPartitionsRequest(topics=asked), 0)
            assert [(topic.name, topic.error_code) for topic in page.topics] == [
                (MINE, 0),
                (OTHER, REFUSED),
            ]

    run(main)


def bits(*operations: str) -> int:
    return sum(1 << AclOperation[operation] for operation in operations)


def every(resource_type: ResourceType) -> int:
    return sum(1 << operation for operation in OPERATIONS[resource_type])


def test_allowed_operations_are_told_as_bit_fields() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            broker.allow(
                rule("READ", MINE),
                rule("READ", "g", of="GROUP"),
                rule("DESCRIBE", CLUSTER_NAME, of="CLUSTER"),
            )
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=MINE)],
                include_topic_authorized_operations=True,
                include_cluster_authorized_operations=True,
            )
            answer = await broker.ask(request, 10)
            assert answer.topics[0].topic_authorized_operations == bits("READ", "DESCRIBE")
            assert answer.cluster_authorized_operations == bits("DESCRIBE")
            answer = await broker.ask(request, 10, ADMIN)
            assert answer.topics[0].topic_authorized_operations == every(ResourceType.TOPIC)
            assert answer.cluster_authorized_operations == every(ResourceType.CLUSTER)
            cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)
            assert (await broker.ask(cluster, 1)).cluster_authorized_operations == bits("DESCRIBE")
            find = FindCoordinatorRequest(coordinator_keys=["g"], key_type=0)
            await broker.ask(find, 4, ADMIN)
            group = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
            await broker.ask_until_served(group, 5)
            (described,) = (await broker.ask(group, 5)).groups
            assert described.authorized_operations == bits("READ", "DESCRIBE")

    run(main)


def test_a_group_with_topics_that_may_not_be_seen_shows_no_members() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            find = FindCoordinatorRequest(coordinator_keys=["g"], key_type=0)
            await broker.ask(find, 4, ADMIN)
            join = ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=10_000,
                subscribed_topic_names=[MINE],
                topic_partitions=[],
            )
            await broker.ask_until_served(join, 1)
            describe = ConsumerGroupDescribeRequest(group_ids=["g"])
            broker.allow(rule("DESCRIBE", "g", of="GROUP"))
            (group,) = (await broker.ask(describe, 1)).groups
            assert (group.error_code, group.members) == (REFUSED, [])
            broker.allow(rule("DESCRIBE", "g", of="GROUP"), rule("DESCRIBE", MINE))
            (group,) = (await broker.ask(describe, 1)).groups
            assert (group.error_code, len(group.members)) == (0, 1)

    run(main)


def test_a_group_that_asks_for_all_topics_hides_no_topic_that_another_group_names() -> None:
    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            await broker.ask_until_served(FindCoordinatorRequest(key_type=0, key="open"), 3)
            for group_id, name in (("open", MINE), ("open", OTHER), ("sink", GROUP_TOPIC)):
                partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
                topic = OffsetCommitRequestTopic(name=name, partitions=[partition])
                commit = OffsetCommitRequest(
                    group_id=group_id,
                    generation_id_or_member_epoch=-1,
                    member_id="",
                    topics=[topic],
                )
                await broker.ask_until_served(commit, 8)
            broker.allow(rule("DESCRIBE", "*", of="GROUP"), rule("DESCRIBE", MINE))
            progress = OffsetFetchRequestTopics(name=GROUP_TOPIC, partition_indexes=[0])
            request = OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(group_id="open", topics=None),
                    OffsetFetchRequestGroup(group_id="sink", topics=[progress]),
                ]
            )
            answer = await broker.ask(request, 8)
            found = {each.group_id: [topic.name for topic in each.topics] for each in answer.groups}
            assert found == {"open": [MINE], "sink": [GROUP_TOPIC]}

    run(main)


def test_refusals_and_changes_are_lines_of_the_audit_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tidelog.audit")

    def lines() -> list[dict[str, object]]:
        found = [
            json.loads(record.getMessage())
            for record in caplog.records
            if record.name == "tidelog.audit"
        ]
        caplog.clear()
        return found

    async def main() -> None:
        async with guarded_broker() as broker:
            await two_topics(broker)
            allowed, denied = rule("READ", MINE), rule("READ", OTHER, deny=True)
            broker.allow(allowed, denied, rule("CREATE", "new"))
            lines()
            await broker.ask(fetch_of(MINE), 12)
            assert lines() == []
            await broker.ask(fetch_of(OTHER), 12)
            assert lines()[0] == {
                "decision": "denied",
                "principal": "User:alice",
                "host": "127.0.0.1",
                "client_id": "test",
                "api": "Fetch",
                "operation": "Read",
                "resource": f"Topic:{OTHER}",
                "rule": str(denied),
            }
            # Resources that the client does not name count as no refusals.
            await broker.ask(MetadataRequest(topics=None), 9)
            assert lines() == []
            topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
            await broker.ask(CreateTopicsRequest(topics=[topic]), 7)
            (line,) = lines()
            assert (line["decision"], line["operation"]) == ("allowed", "Create")
            await broker.ask(DeleteTopicsRequest(topic_names=["new"]), 5, ADMIN)
            (line,) = lines()
            assert (line["principal"], line["rule"]) == ("User:admin", "super.users")
            assert (line["operation"], line["resource"]) == ("Delete", "Cluster:kafka-cluster")
            # A question about drained brokers changes nothing, but a drain does.
            asks, drains = DrainBrokersRequest(brokers=[]), BrokerDrain(broker_id=9, draining=True)
            await broker.ask(asks, 0, ADMIN)
            assert lines() == []
            await broker.ask(DrainBrokersRequest(brokers=[drains]), 0, ADMIN)
            (line,) = lines()
            assert (line["api"], line["operation"]) == ("DrainBrokers", "Alter")

    run(main)
