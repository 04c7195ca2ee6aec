"""A stream publishes its progress as offsets of a group: exactly the offsets that Spark has
committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from tests.unit.broker.authentication.test_kafka_clients_by_sasl import create_users, secured
from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tests.unit.broker.sink_world import SETTINGS, client_of, world
from tests.unit.broker.transactional_client import loaded
from tests.unit.spark_source.sink.test_sink_security import LOGIN, allow_alice
from tests.unit.spark_source.spark_world import schema_of, store_at
from tidelog.client.errors import RequestRefused
from tidelog.client.groups.admin import Place, commit_offsets, committed_offsets
from tidelog.localstack.ports import free_ports
from tidelog.protocol.error_codes import ErrorCode
from tidelog.spark_source.source import TidelogSource
from tidelog.spark_source.stream import publishing
from tidelog.spark_source.stream.progress import Checkpoint, StreamOffsets
from tidelog.spark_source.stream.stream import StreamReader

GROUP = "dashboard"


class Driver:
    """Calls a reader as Spark does. Its commit log is `log`."""

    def __init__(self, folder: Path, address: str, **more: str) -> None:
        options = {
            "store": f"file://{folder}",
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "2",
            "publishGroupId": GROUP,
            "kafka.bootstrap.servers": address,
            **more,
        }
        self.reader: StreamReader = TidelogSource(options).streamReader(schema_of("value"))
        self.log: list[Checkpoint] = []

    def plan(self) -> Checkpoint:
        """The next batch's end. Moves the reader's timers so that none of them delays it."""
        if self.reader._watcher is not None:
            self.reader._watcher._asked_at -= 2
        if self.reader._publisher is not None:
            self.reader._publisher._next_at = self.reader._publisher._paused_until = 0.0
        start = self.log[-1] if self.log else self.reader.initialOffset()
        return self.reader.latestOffset(start, self.reader.getDefaultReadLimit())

    async def planned(self) -> Checkpoint:
        return await asyncio.to_thread(self.plan)


def tell(folder: Path, story: Callable[[OneBroker, Driver], Awaitable[None]]) -> None:
    async def told() -> None:
        async with world(store_at(folder)).broker() as one:
            await loaded(one)
            await one.create_topic(partitions=2)
            await one.produce(batch(*(b"%d" % number for number in range(5))))
            host, port = one.broker.membership.advertised
            driver = await asyncio.to_thread(Driver, folder, f"{host}:{port}")
            try:
                await story(one, driver)
            finally:
                await asyncio.to_thread(driver.reader.stop)

    run(told)


async def published(one: OneBroker) -> dict[Place, int]:
    async with client_of(one) as client:
        return await committed_offsets(client, GROUP)


def at(offset: int) -> dict[Place, int]:
    return {Place(TOPIC, 0): offset, Place(TOPIC, 1): 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


def test_a_batch_is_published_when_it_is_committed_and_not_before(folder: Path) -> None:
    async def story(one: OneBroker, driver: Driver) -> None:
        for committed in ({}, at(0), at(2), at(4)):
            end = await driver.planned()
            assert await published(one) == committed
            # Spark plans the batch again, since it was not committed.
            assert await published(one) == committed
            driver.log.append(end)
        await driver.planned()
        assert await published(one) == at(5)

    tell(folder, story)


def test_publications_are_a_second_apart_and_repeated_before_they_expire(folder: Path) -> None:
    async def story(one: OneBroker, driver: Driver) -> None:
        driver.log.append(await driver.planned())
        driver.log.append(await driver.planned())
        publisher = driver.reader._publisher
        assert publisher is not None
        publisher.publish(StreamOffsets.of(driver.log[-1]))
        assert await published(one) == at(0), "a moment later is too early"
        last = StreamOffsets.of(driver.log[-1])
        await asyncio.to_thread(publisher.publish, last, at_once=True)
        assert await published(one) == at(2), "the last publication comes at once"
        await driver.planned()
        assert await published(one) == at(2)
        async with client_of(one) as client:
            await commit_offsets(client, GROUP, {Place(TOPIC, 0): 1})
            await driver.planned()
            assert (await committed_offsets(client, GROUP))[Place(TOPIC, 0)] == 1
            publisher._again_at = 0.0
            await driver.planned()
            assert (await committed_offsets(client, GROUP))[Place(TOPIC, 0)] == 2

    tell(folder, story)


def test_a_query_goes_on_and_logs_a_warning_while_no_broker_answers(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)

    async def story(one: OneBroker, driver: Driver) -> None:
        driver = await asyncio.to_thread(Driver, folder, f"127.0.0.1:{port}")
        with caplog.at_level(logging.WARNING):
            while not driver.log or driver.log[-1][TOPIC]["offsets"]["0"] < 5:
                driver.log.append(await driver.planned())
        await asyncio.to_thread(driver.reader.stop)
        assert await published(one) == {}

    tell(folder, story)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said
    assert f"not published as offsets of group {GROUP} by 127.0.0.1:{port}" in said[0]
    assert "The query goes on, and publishes again in 30 s" in said[0]


def test_a_group_that_consumers_are_in_is_refused_with_a_hint(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any) -> None:
        raise RequestRefused("offset", ErrorCode.UNKNOWN_MEMBER_ID)

    async def story(one: OneBroker, driver: Driver) -> None:
        driver.log.append(await driver.planned())
        monkeypatch.setattr(publishing, "commit_offsets", refused)
        await driver.planned()

    tell(folder, story)
    assert "give publishGroupId a group of its own" in caplog.text


def test_progress_is_published_with_a_login_and_rules_alone(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused query goes on. Its warning has the reason, and not the password."""
    secret = tmp_path / "secret"
    secret.write_text("password=hush-hush\n")
    known = LOGIN | {"kafka.sasl.password": f"${{file:{secret}:password}}"}

    async def story() -> None:
        acls = {"authorizer_class_name": "acl", "super_users": "User:ANONYMOUS"}
        async with secured(store_at(folder), **SETTINGS, **acls) as (one, plain, closed):
            await loaded(one)
            await asyncio.to_thread(create_users, plain, ("SCRAM-SHA-256", "alice", "hush-hush"))
            await one.produce(batch(*(b"%d" % number for number in range(5))))

            async def advanced(**security: str) -> str:
                """Commit a batch, and ask for the next. Returns the warning that was logged."""
                driver = await asyncio.to_thread(Driver, folder, closed, **security)
                caplog.clear()
                try:
                    for _ in range(3):
                        driver.log.append(await driver.planned())
                    assert "hush" not in caplog.text
                    return "".join(
                        each.getMessage()
                        for each in caplog.records
                        if each.name.startswith("tidelog.spark_source")
                    )
                finally:
                    await asyncio.to_thread(driver.reader.stop)

            guess = LOGIN | {"kafka.sasl.password": "hush-guess"}
            assert "SASL_AUTHENTICATION_FAILED" in await advanced(**guess)
            assert "GROUP_AUTHORIZATION_FAILED" in await advanced(**known)
            on_group = (ResourceType.GROUP, GROUP, AclOperation.READ)
            await asyncio.to_thread(allow_alice, plain, on_group)
            assert "TOPIC_AUTHORIZATION_FAILED" in await advanced(**known)
            assert await published(one) == {}
            on_topic = (ResourceType.TOPIC, TOPIC, AclOperation.READ)
            await asyncio.to_thread(allow_alice, plain, on_topic)
            assert await advanced(**known) == ""
            assert await published(one) == {Place(TOPIC, 0): 2}

    with caplog.at_level(logging.WARNING, logger="tidelog.spark_source"):
        run(story)
