"""What `read` takes from a bucket, without Java."""

from __future__ import annotations

import pytest

from tests.unit.broker.one_broker import TOPIC, batch, run
from tests.unit.bucket.bucket_world import WatchedStore, opened, world
from tidelog.bucket.views.reading import NoSuchTopic
from tidelog.bucket.views.selection import selected
from tidelog.errors import InvalidConfiguration
from tidelog.records.validate.rules import TIMESTAMP_MS_MAX
from tidelog.spark_source.united import _taken


def test_a_topic_that_is_deleted_meanwhile_is_no_empty_topic() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await broker.create_topic(TOPIC)
            await broker.produce(batch(b"value"))
            store = WatchedStore(here.store)
            bucket = await opened(store)

            async def delete(_: int, key: str) -> None:
                # The reader has found the topic by its name, and begins with the table.
                if key.startswith("topics/"):
                    store.before = None
                    await broker.delete_topic(topic_id)

            store.before = delete
            with pytest.raises(NoSuchTopic, match="is deleted"):
                await _taken(bucket, TOPIC, selected())
            assert store.before is None

    run(story)


@pytest.mark.parametrize("name", ["since", "until"])
def test_a_time_that_is_in_no_milliseconds_is_refused(name: str) -> None:
    for time in (TIMESTAMP_MS_MAX, -TIMESTAMP_MS_MAX):
        selected(**{name: time})
    for time in (TIMESTAMP_MS_MAX + 1, -TIMESTAMP_MS_MAX - 1, 2**63 - 1):
        with pytest.raises(InvalidConfiguration, match=f"{name}: {time} is no time in millisec"):
            selected(**{name: time})
