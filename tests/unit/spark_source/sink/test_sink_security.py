"""The sink commits through a listener that requires a login."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.unit.broker.authentication.test_kafka_clients_by_sasl import create_users, secured
from tests.unit.broker.one_broker import TOPIC, run
from tests.unit.broker.sink_world import SETTINGS
from tests.unit.broker.transactional_client import loaded, read
from tests.unit.spark_source.sink.test_sink import SinkWorld, rows, stage
from tests.unit.spark_source.spark_world import store_at
from tidelog.client.errors import RequestRefused
from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.sink.sink_options import parse_write_options

NEEDED = (
    (ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
    (ResourceType.TRANSACTIONAL_ID, "pipeline", AclOperation.WRITE),
    (ResourceType.GROUP, "pipeline", AclOperation.READ),
)
LOGIN = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "SCRAM-SHA-256",
    "kafka.sasl.username": "alice",
}


def allow_alice(address: str, *needed: tuple[ResourceType, str, AclOperation]) -> None:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    rules = [
        AclBinding(kind, name, literal, "User:alice", "*", operation, allow)
        for kind, name, operation in needed
    ]
    admin = AdminClient({"bootstrap.servers": address})
    for created in admin.create_acls(rules).values():
        created.result(20)


async def write(world: SinkWorld, **options: str) -> None:
    writer = await world.batch_writer(0, **options)
    staged = await stage(writer, rows(0, b"a"))
    await asyncio.to_thread(writer.commit, [staged])


def test_a_batch_is_committed_with_a_login_and_rules_alone(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password=hush-hush\n")
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    known = LOGIN | {"kafka.sasl.password": f"${{file:{secret}:password}}"}

    async def story() -> None:
        acls = {"authorizer_class_name": "acl", "super_users": "User:ANONYMOUS"}
        async with secured(store_at(bucket), **SETTINGS, **acls) as (one, plain, closed):
            await loaded(one)
            await asyncio.to_thread(create_users, plain, ("SCRAM-SHA-256", "alice", "hush-hush"))
            world = SinkWorld(bucket)
            world.address = closed
            with pytest.raises(RequestRefused, match="SASL_AUTHENTICATION_FAILED"):
                await write(world, **(LOGIN | {"kafka.sasl.password": "guess"}))
            with pytest.raises(RequestRefused, match="TOPIC_AUTHORIZATION_FAILED"):
                await write(world, **known)
            assert await read(one, 0) == []
            await asyncio.to_thread(allow_alice, plain, *NEEDED)
            await write(world, **known)
            assert await read(one, 0) == [b"a"]

    run(story)


def test_a_secret_is_not_shown_and_names_are_checked() -> None:
    given = {"kafka.bootstrap.servers": "one:9092", "transactionalId": "pipeline"}
    found = parse_write_options(
        given | LOGIN | {"kafka.sasl.password": "hush-hush"}, "memory://sink"
    )
    assert found.security["sasl.password"] == "hush-hush"
    assert "hush-hush" not in repr(found)
    with pytest.raises(InvalidConfiguration, match=r"option kafka\.acks"):
        parse_write_options(given | {"kafka.acks": "1"}, "memory://sink")
