"""Members of consumer groups through foreign clients: each reads some records, commits, leaves."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer
from kafka import KafkaConsumer

from tests.compat.kit.clients import PROGRAMS
from tidelog.localstack.kafka import java_command

SECONDS_MAX = 120.0
CLASSIC, CONSUMER = "classic", "consumer"


class Seen(NamedTuple):
    """A record's place."""

    partition: int
    offset: int


GroupMember = Callable[[str, str, str, int], list[Seen]]
"""(bootstrap, group, topic, count) -> the places of the first `count` records that arrived."""


def confluent(
    bootstrap: str, group: str, topic: str, count: int, protocol: str = CLASSIC
) -> list[Seen]:
    """confluent-kafka on librdkafka."""
    consumer = Consumer(
        {
            "group.protocol": protocol,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
    )
    seen: list[Seen] = []
    try:
        consumer.subscribe([topic])
        while len(seen) < count:
            message = consumer.poll(SECONDS_MAX)
            if message is None:
                break
            assert message.error() is None, message.error()
            seen.append(Seen(message.partition(), message.offset()))
            consumer.store_offsets(message)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return seen


def kafka_python(bootstrap: str, group: str, topic: str, count: int) -> list[Seen]:
    """kafka-python."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=SECONDS_MAX * 1000,
    )
    seen = []
    try:
        for message in consumer:
            seen.append(Seen(message.partition, message.offset))
            if len(seen) == count:
                break
        consumer.commit()
    finally:
        consumer.close()
    return seen


def aiokafka(bootstrap: str, group: str, topic: str, count: int) -> list[Seen]:
    """aiokafka."""

    async def run() -> list[Seen]:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        seen = []
        await consumer.start()
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while len(seen) < count:
                    message = await consumer.getone()
                    seen.append(Seen(message.partition, message.offset))
            await consumer.commit()
        finally:
            await consumer.stop()
        return seen

    return asyncio.run(run())


def program(command: list[str], *last: str) -> GroupMember:
    """A client in another language, behind a program that prints its records."""

    def member(bootstrap: str, group: str, topic: str, count: int) -> list[Seen]:
        done = subprocess.run(
            [*command, bootstrap, group, topic, str(count), *last],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX * 2,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [Seen(*map(int, line.split("\t"))) for line in done.stdout.splitlines()]

    return member


def java(lib: Path, protocol: str = CLASSIC) -> GroupMember:
    """Apache Kafka's Java client, its program run from source."""
    return program(java_program(lib), protocol)


def java_program(lib: Path) -> list[str]:
    """The command of a member; its arguments follow."""
    return java_command(lib, str(PROGRAMS / "GroupMember.java"), [], heap="256m")


def kafkajs(modules: Path) -> GroupMember:
    """KafkaJS from the npm packages in `modules`."""
    copied = modules / "group_member.cjs"
    shutil.copyfile(PROGRAMS / "group_member.cjs", copied)
    return program(["node", str(copied)])
