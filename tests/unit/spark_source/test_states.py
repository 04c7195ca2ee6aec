"""`format("tidelog.groups")`: groups of either protocol, and how far they are behind."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.unit.broker.group_client import GROUP, find
from tests.unit.broker.handlers.test_consumer_groups import commit, join
from tests.unit.broker.one_broker import TOPIC, batch, run
from tests.unit.bucket.bucket_world import opened, world
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.states import groups
from tidelog.protocol.error_codes import ErrorCode
from tidelog.spark_source import states
from tidelog.spark_source.states import GroupsSource


def test_the_lag_of_a_consumer_group_is_that_of_its_committed_offsets() -> None:
    here = world()

    async def story() -> list[dict[str, Any]]:
        async with here.broker() as broker:
            await broker.create_topic()
            for value in (b"a", b"b", b"c"):
                await broker.produce(batch(value))
            await find(broker)
            assert (await join(broker)).error_code == ErrorCode.NONE
            assert await commit(broker, 1, 1) == ErrorCode.NONE
        rows = await GroupsSource.rows(await opened(here.store), ["end_offset", "lag"])
        found: list[dict[str, Any]] = rows.to_pylist()
        return found

    rows = run(story)
    (offset,) = [row for row in rows if row["kind"] == "offset"]
    assert (offset["group_id"], offset["topic"], offset["partition"]) == (GROUP, TOPIC, 0)
    assert (offset["offset"], offset["end_offset"], offset["lag"]) == (1, 3, 2)
    (member,) = [row for row in rows if row["record_kind"] == "consumer member"]
    assert (member["group_id"], member["member_id"], member["lag"]) == (GROUP, "m", None)


def test_a_topic_that_is_deleted_meanwhile_has_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    here = world()

    async def story() -> list[dict[str, Any]]:
        async with here.broker() as broker:
            topic_id = await broker.create_topic()
            await broker.produce(batch(b"a"))
            await find(broker)
            assert (await join(broker)).error_code == ErrorCode.NONE
            assert await commit(broker, 1, 1) == ErrorCode.NONE

            async def then_deleted(bucket: Bucket) -> pa.Table:
                found = await groups(bucket)
                await broker.delete_topic(topic_id)
                return found

            monkeypatch.setattr(states, "groups", then_deleted)
            rows = await GroupsSource.rows(await opened(here.store), ["end_offset", "lag"])
        found: list[dict[str, Any]] = rows.to_pylist()
        return found

    (offset,) = [row for row in run(story) if row["kind"] == "offset"]
    assert (offset["topic"], offset["offset"], offset["lag"]) == (TOPIC, 1, None)
