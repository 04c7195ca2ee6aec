"""The tutorials' pages, followed step by step as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.page_reader import ROOT, Command, assert_printed, reader
from tidelog.localstack.ports import free_ports
from tidelog.localstack.s3_servers import S3Server
from tidelog.testing import Broker

pytestmark = pytest.mark.integration


def page(name: str) -> str:
    return (ROOT / "docs" / "tutorials" / name).read_text()


def test_the_quick_start(tmp_path: Path) -> None:
    kafka, http = free_ports(2)
    text = page("quick-start.md").replace("9092", str(kafka)).replace("9093", str(http))
    with reader(tmp_path, TIDELOG_BOOTSTRAP=f"127.0.0.1:{kafka}") as new_user:
        new_user.follow(text)
        assert len(new_user.brokers) == 2


def test_a_closed_cluster(tmp_path: Path) -> None:
    ports = dict(zip(("9092", "9093", "9094", "9095"), map(str, free_ports(4)), strict=True))
    text = re.sub("909[2-5]", lambda found: ports[found[0]], page("closed-cluster.md"))
    with reader(tmp_path, TIDELOG_BOOTSTRAP=f"127.0.0.1:{ports['9092']}") as operator:
        operator.follow(text)
        assert len(operator.brokers) == 2


def test_tests_with_pytest(tmp_path: Path) -> None:
    with reader(tmp_path) as developer:
        developer.follow(page("testing.md"))


def test_replacing_kafka(tmp_path: Path) -> None:
    with Broker() as old, Broker() as new:
        with reader(tmp_path, OLD=old.bootstrap, NEW=new.bootstrap) as operator:
            operator.run(
                Command("tidelog topics create flights --partitions 3 --bootstrap $OLD", [])
            )
            old.produce("flights", ["a", "b", "c"])
            operator.follow(page("replacing-kafka.md"))
            moved = {(each.partition, each.value, each.timestamp) for each in new.read("flights")}
        assert moved == {
            (each.partition, each.value, each.timestamp) for each in old.read("flights")
        }


@pytest.mark.timeout(900)
def test_a_spark_pipeline(tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    require_tool("java")
    (kafka,) = free_ports(1)
    text = page("spark.md").replace("9092", str(kafka))
    with reader(tmp_path, TIDELOG_BOOTSTRAP=f"127.0.0.1:{kafka}") as engineer:
        engineer.follow(text)
        assert len(engineer.brokers) == 1


@pytest.mark.timeout(900)
def test_a_cluster_on_minio(tmp_path: Path, minio: S3Server) -> None:
    ports = dict(zip(("9092", "9093", "9094"), map(str, free_ports(3)), strict=True))
    text = re.sub("909[2-4]", lambda found: ports[found[0]], page("minio.md"))
    (bootstrap,) = re.findall("TIDELOG_BOOTSTRAP=(.*)", text)
    with reader(tmp_path, TIDELOG_BOOTSTRAP=bootstrap, **minio.environment) as operator:
        operator.follow(text)
        assert len(operator.brokers) == 4


@pytest.mark.parametrize(
    ("expected", "output", "is_there"),
    [("a … c", "x\na b c\n", True), ("a … c", "a b d", False), ("a", "ab", False)],
)
def test_missing_output_is_noticed(expected: str, output: str, *, is_there: bool) -> None:
    if is_there:
        assert_printed(expected, output, "")
    else:
        with pytest.raises(AssertionError):
            assert_printed(expected, output, "")


def test_the_site_of_the_documents(tmp_path: Path) -> None:
    """Every page is in its navigation, and every link and anchor leads somewhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    home = (tmp_path / "index.html").read_text()
    assert "A transactional log on object storage" in home
    assert 'href="STATUS.html"' in home
