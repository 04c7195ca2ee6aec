"""MirrorMaker 2 moves topics and groups from Apache Kafka to Tidelog, by the tutorial's file."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidelog import Admin, Consumer, Producer
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.kafka import KAFKA_VERSION, ApacheKafka, java_command
from tidelog.localstack.maven import fetch_jars

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache"
PAGE = ROOT / "docs" / "tutorials" / "replacing-kafka.md"
MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
LOOKS_MAX = 240
LOOK_SECONDS = 0.5
# By default MirrorMaker looks at groups each minute, and notes an offset each hundred records. It
# keeps topics of its own in both clusters, with three replicas by default, and ends if it cannot
# create them for some time. The test's old cluster has one broker.
QUICKLY = """
offset-syncs.topic.replication.factor = 1
config.storage.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
emit.checkpoints.interval.seconds = 1
sync.group.offsets.interval.seconds = 1
offset.lag.max = 0
"""
WORKER_TOPICS = {f"mm2-{kind}.new.internal" for kind in ("configs", "offsets", "status")}
"""What MirrorMaker needs in the old cluster, even if it copies nothing into it."""
COUNT = 300
JARS = (f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
Record = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None]


def records(bootstrap: str) -> list[Record]:
    """Partition, key, value, headers and time of each record, in each partition's order."""
    with Consumer(bootstrap, "flights", auto_offset_reset="earliest") as consumer:
        found = sorted(consumer.to_end(), key=lambda each: (each.partition, each.offset))
    return [(m.partition, m.key, m.value, m.headers, m.timestamp) for m in found]


def produce(bootstrap: str, count: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send("flights", f"flight {number}", f"plane {number % 7}", {"n": "1"})


def read_on(bootstrap: str, seen: set[tuple[int, int]], count: int) -> None:
    """A member of the group reads until this many records were seen, and commits."""
    with Consumer(
        bootstrap, "flights", "planes", auto_offset_reset="earliest", max_poll_records=50
    ) as planes:
        while len(seen) < count:
            batch = planes.batch(timeout=60)
            assert batch
            seen |= {(each.partition, each.offset) for each in batch}


@contextmanager
def mirroring(lib: Path, folder: Path, old: str, new: str) -> Iterator[Callable[[], str]]:
    """Run MirrorMaker with the tutorial's file. Yields a function that returns its log."""
    found = re.search(r'```properties title="mirror.properties"\n(.*?)```', PAGE.read_text(), re.S)
    assert found is not None
    text = found[1].replace("= OLD", f"= {old}").replace("= NEW", f"= {new}")
    file, log = folder / "mirror.properties", folder / "mirror.log"
    file.write_text(text + QUICKLY)
    with log.open("wb") as output:
        process = subprocess.Popen(
            java_command(lib, MAIN, [str(file)], "512m"), stdout=output, stderr=output
        )
        try:
            yield log.read_text
        finally:
            process.kill()
            process.wait()


def wait_until(holds: Callable[[], bool], log: Callable[[], str]) -> None:
    pause = threading.Event()
    for _ in range(LOOKS_MAX):
        if holds():
            return
        pause.wait(LOOK_SECONDS)
    raise AssertionError(log()[-4000:])


def test_the_tutorials_file_moves_a_topic_and_its_group(
    require_tool: Callable[[str], str], tmp_path: Path
) -> None:
    require_tool("java")
    require_tool("mvn")
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with (
        ApacheKafka.start(tmp_path / "kafka", CACHE) as kafka,
        BrokerProcess.start(f"file://{bucket}", tmp_path / "broker.log") as broker,
    ):
        old, new = kafka.bootstrap, broker.kafka
        Admin(old).create_topic("flights", 3, {"retention.ms": 777_600_000})
        seen: set[tuple[int, int]] = set()
        produce(old, COUNT)
        read_on(old, seen, COUNT)
        lib = fetch_jars(CACHE / f"kafka-mirror-{KAFKA_VERSION}", JARS)
        with mirroring(lib, tmp_path, old, new) as log:
            wait_until(lambda: Admin(old).topics().keys() >= WORKER_TOPICS, log)
            wait_until(lambda: "flights" in Admin(new).topics(), log)
            wait_until(lambda: len(records(new)) >= COUNT, log)
            # An offset that the group committed before MirrorMaker began has no translation. Here
            # the old cluster is in use while MirrorMaker runs.
            produce(old, COUNT)
            read_on(old, seen, COUNT + 1)
            wait_until(lambda: len(records(new)) >= 2 * COUNT, log)
            wait_until(lambda: sum(Admin(new).group_offsets("planes").values()) >= COUNT, log)
        assert records(new) == records(old)
        assert Admin(new).configs("flights")["retention.ms"] == "777600000"
        # In the new cluster, the group's next member gets every record that the group had not seen.
        assert len(seen) < 2 * COUNT
        read_on(new, seen, 2 * COUNT)
        assert sum(Admin(new).group_offsets("planes").values()) == 2 * COUNT
