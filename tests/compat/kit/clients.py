"""The foreign clients, each driven the same way: produce records with a codec, consume a topic."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition

from tests.compat.kit.records import Record
from tidelog.localstack.kafka import java_command

PROGRAMS = Path(__file__).parent / "programs"
SECONDS_MAX = 120.0


class Client(Protocol):
    """Produces and consumes through one unmodified library or program."""

    name: str

    def produce(self, bootstrap: str, topic: str, codec: str, records: list[Record]) -> list[int]:
        """The acknowledged offset of each record."""
        ...

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[Record]:
        """The first `count` records of all partitions, or fewer if some do not arrive in time."""
        ...


class Confluent:
    """confluent-kafka on librdkafka."""

    name = "confluent-kafka"

    def produce(self, bootstrap: str, topic: str, codec: str, records: list[Record]) -> list[int]:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "message.max.bytes": 2_000_000,
                "enable.idempotence": True,
            }
        )
        offsets: dict[int, int] = {}

        def remember(number: int) -> Callable[[object, Message], None]:
            def callback(error: object, message: Message) -> None:
                assert error is None, error
                offsets[number] = message.offset()

            return callback

        for number, r in enumerate(records):
            producer.produce(
                topic,
                value=r.value,
                key=r.key,
                partition=r.partition,
                headers=list(r.headers) or None,
                on_delivery=remember(number),
            )
        producer.flush(SECONDS_MAX)
        return [offsets[number] for number in range(len(records))]

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[Record]:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "compat",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": 2_000_000,
                "check.crcs": True,
            }
        )
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        records = []
        try:
            while len(records) < count:
                found = consumer.consume(count, timeout=SECONDS_MAX / 3)[: count - len(records)]
                if not found:
                    break
                for m in found:
                    assert m.error() is None, m.error()
                    headers = tuple(m.headers() or ())
                    records.append(Record(m.partition(), m.key(), m.value(), headers, m.offset()))
        finally:
            consumer.close()
        return records


class AioKafka:
    """aiokafka, pure Python with Cython."""

    name = "aiokafka"

    def produce(self, bootstrap: str, topic: str, codec: str, records: list[Record]) -> list[int]:
        async def run() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                max_request_size=2_000_000,
                enable_idempotence=True,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic, r.value, r.key, partition=r.partition, headers=list(r.headers)
                    )
                    for r in records
                ]
                return [(await future).offset for future in sent]
            finally:
                await producer.stop()

        return asyncio.run(run())

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[Record]:
        async def run() -> list[Record]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            )
            await consumer.start()
            try:
                consumer.assign([AioTopicPartition(topic, p) for p in range(partitions)])
                await consumer.seek_to_beginning()
                records: list[Record] = []
                async with asyncio.timeout(SECONDS_MAX):
                    while len(records) < count:
                        for found in (await consumer.getmany(timeout_ms=500)).values():
                            for m in found:
                                headers = tuple(m.headers)
                                records.append(
                                    Record(m.partition, m.key, m.value, headers, m.offset)
                                )
                return records
            finally:
                await consumer.stop()

        return asyncio.run(run())


class KafkaPython:
    """kafka-python, pure Python."""

    name = "kafka-python"

    def produce(self, bootstrap: str, topic: str, codec: str, records: list[Record]) -> list[int]:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            max_request_size=2_000_000,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    value=r.value,
                    key=r.key,
                    partition=r.partition,
                    headers=[(name, value) for name, value in r.headers],
                )
                for r in records
            ]
            return [future.get(timeout=SECONDS_MAX).offset for future in sent]
        finally:
            producer.close()

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[Record]:
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            consumer_timeout_ms=SECONDS_MAX * 1000 / 3,
        )
        try:
            consumer.assign([PyTopicPartition(topic, p) for p in range(partitions)])
            records = []
            for m in consumer:
                headers = tuple((name, value) for name, value in m.headers)
                records.append(Record(m.partition, m.key, m.value, headers, m.offset))
                if len(records) == count:
                    break
            return records
        finally:
            consumer.close()


@dataclass(slots=True)
class ProgramClient:
    """A client in another language, behind a program that speaks record lines."""

    name: str
    command: list[str]

    def produce(self, bootstrap: str, topic: str, codec: str, records: list[Record]) -> list[int]:
        lines = "".join(r.line() + "\n" for r in records)
        return [int(line) for line in self._run(["produce", bootstrap, topic, codec], lines)]

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[Record]:
        arguments = ["consume", bootstrap, topic, str(partitions), str(count)]
        return [Record.parse(line) for line in self._run(arguments, "")]

    def _run(self, arguments: list[str], text: str) -> list[str]:
        done = subprocess.run(
            [*self.command, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()


def java_client(lib: Path) -> ProgramClient:
    """Apache Kafka's Java client, its program run from source."""
    command = java_command(lib, str(PROGRAMS / "JavaClient.java"), [], heap="512m")
    return ProgramClient("java", command)


def kafkajs_client(modules: Path) -> ProgramClient:
    """KafkaJS from the npm packages in `modules`."""
    program = modules / "kafkajs.cjs"
    shutil.copyfile(PROGRAMS / "kafkajs.cjs", program)
    return ProgramClient("kafkajs", ["node", str(program)])


class Kcat:
    """kcat, one invocation a record when it produces."""

    name = "kcat"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def produce(self, bootstrap: str, topic: str, codec: str, records: list[Record]) -> list[int]:
        value_file = self._folder / "value"
        for r in records:
            command = ["kcat", "-P", "-b", bootstrap, "-t", topic, "-p", str(r.partition)]
            command += ["-z", codec, "-X", "message.max.bytes=2000000", "-X", "acks=all"]
            if r.key is not None:
                command += ["-k", r.key.decode()]
            for name, value in r.headers:
                command += ["-H", f"{name}={(value or b'').decode()}"]
            value_file.write_bytes(r.value or b"")
            subprocess.run([*command, str(value_file)], check=True, timeout=SECONDS_MAX)
        return []

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> list[Record]:
        command = ["kcat", "-C", "-b", bootstrap, "-t", topic, "-o", "beginning", "-e", "-q", "-J"]
        command += ["-X", "check.crcs=true"]
        done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=True)
        return [_kcat_record(json.loads(line)) for line in done.stdout.splitlines()]


def _kcat_record(found: dict[str, object]) -> Record:
    def data(value: object) -> bytes | None:
        return None if value is None else str(value).encode()

    flat = found.get("headers", [])
    assert isinstance(flat, list)
    headers = tuple((name, data(value)) for name, value in zip(flat[::2], flat[1::2], strict=True))
    partition, offset = found["partition"], found["offset"]
    assert isinstance(partition, int)
    assert isinstance(offset, int)
    return Record(partition, data(found["key"]), data(found["payload"]), headers, offset)
