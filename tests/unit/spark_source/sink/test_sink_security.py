"""The sink commits by a listener that asks for a login."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.broker.authentication.test_kafka_clients_by_sasl import create_users, secured
from tests.unit.broker.one_broker import run
from tests.unit.broker.sink_world import SETTINGS
from tests.unit.broker.transactional_client import loaded, read
from tests.unit.spark_source.sink.test_sink import SinkWorld, rows, stage
from tests.unit.spark_source.spark_world import store_at
from tidelog.client.errors import RequestRefused
from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.sink.sink_options import parse_write_options

LOGIN = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "SCRAM-SHA-256",
    "kafka.sasl.username": "alice",
}


async def write(world: SinkWorld, **options: str) -> None:
    writer = await world.batch_writer(0, **options)
    staged = await stage(writer, rows(0, b"a"))
    await asyncio.to_thread(writer.commit, [staged])


def test_a_batch_is_committed_with_a_login_and_refused_without_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password=hush\n")
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    known = LOGIN | {"kafka.sasl.password": f"${{file:{secret}:password}}"}

    async def story() -> None:
        async with secured(store_at(bucket), **SETTINGS) as (one, plain, closed):
            await loaded(one)
            await asyncio.to_thread(create_users, plain, ("SCRAM-SHA-256", "alice", "hush"))
            world = SinkWorld(bucket)
            world.address = closed
            with pytest.raises(RequestRefused, match="SASL_AUTHENTICATION_FAILED"):
                await write(world, **(LOGIN | {"kafka.sasl.password": "guess"}))
            assert await read(one, 0) == []
            await write(world, **known)
            assert await read(one, 0) == [b"a"]

    run(story)


def test_a_secret_is_not_shown_and_names_are_checked() -> None:
    given = {"kafka.bootstrap.servers": "one:9092", "transactionalId": "pipeline"}
    found = parse_write_options(given | LOGIN | {"kafka.sasl.password": "hush"}, "memory://sink")
    assert found.security["sasl.password"] == "hush"
    assert "hush" not in repr(found)
    with pytest.raises(InvalidConfiguration, match=r"option kafka\.acks"):
        parse_write_options(given | {"kafka.acks": "1"}, "memory://sink")
