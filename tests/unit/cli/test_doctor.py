"""`tidelog doctor` as a user types it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.storage.stores.test_probe import AppendOnly
from tidelog.cli.root import cli
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import BROKER_VERSION
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.s3_servers import S3Server
from tidelog.storage.stores import location

BUCKET_CHECKS = [
    *("versions", "spark", "store", "rights", "conditional writes", "latency", "clock", "bucket"),
]


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments])


def checks(result: Result) -> dict[str, dict[str, str]]:
    return {each["check"]: each for each in json.loads(result.output)["checks"]}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, str]]:
    folder: Path = tmp_path_factory.mktemp("doctor")
    url = f"file://{folder / 'bucket'}"
    with BrokerProcess.start(url, folder / "log", http="127.0.0.1:0") as process:
        yield process, url


def test_a_cluster_that_is_well(broker: tuple[BrokerProcess, str]) -> None:
    process, url = broker
    done = doctor(url, "--bootstrap", process.kafka, "--http", process.http)
    lines = done.output.splitlines()
    assert done.exit_code == 0, done.output
    assert [line[9:27].strip() for line in lines] == [*BUCKET_CHECKS, "broker", "cost"]
    assert {line.split()[0] for line in lines if " spark " not in line} == {"ok"}
    as_json = checks(doctor(url, "--bootstrap", process.kafka, "--http", process.http, "--json"))
    assert process.cluster in as_json["bucket"]["found"]
    assert f"brokers 0 (version {BROKER_VERSION})" in as_json["bucket"]["found"]
    assert process.cluster in as_json["broker"]["found"]
    assert "a month: put " in as_json["cost"]["found"]


def test_a_broker_of_another_bucket_fails(
    broker: tuple[BrokerProcess, str], tmp_path: Path
) -> None:
    process, _ = broker
    with BrokerProcess.start(f"file://{tmp_path / 'other'}", tmp_path / "log"):
        pass
    done = doctor(f"file://{tmp_path / 'other'}", "--bootstrap", process.kafka, "--json")
    found = checks(done)["broker"]
    assert done.exit_code == 1
    assert found["verdict"] == "failed"
    assert f"cluster {process.cluster}" in found["found"]
    assert "but the bucket holds cluster" in found["found"]


def test_a_broker_that_does_not_answer_fails_with_a_remedy() -> None:
    done = doctor("memory://doctor-alone", "--bootstrap", "127.0.0.1:1", "--json")
    found = checks(done)["broker"]
    assert done.exit_code == 1
    assert found["verdict"] == "failed"
    assert "does a broker listen on 127.0.0.1:1" in found["remedy"]


def test_a_missing_bucket_fails_after_the_machine_s_checks(moto: S3Server) -> None:
    done = doctor(moto.url_of("not-there"), "--json")
    found = checks(done)
    assert done.exit_code == 1
    assert list(found) == ["versions", "spark", "store"]
    assert "tidelog bucket create" in found["store"]["found"]
    assert moto.secret_key not in done.output


def test_a_right_to_delete_that_is_missing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    store = AppendOnly(SystemClock(), "memory://append")
    monkeypatch.setitem(location._memory_stores, "append", store)
    done = doctor("memory://append")
    assert done.exit_code == 1
    (line,) = [line for line in done.output.splitlines() if line.startswith("failed   rights")]
    assert "refuses delete below" in line
    assert line.endswith("what `tidelog bucket policy URL --role broker` prints")


def test_no_credentials_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    done = doctor("s3://bucket/prefix", "--json")
    assert done.exit_code == 1
    assert "no AWS credentials were found" in checks(done)["store"]["found"]
