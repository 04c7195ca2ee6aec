"""The benchmarks' report on Spark, and their counts."""

from __future__ import annotations

import http.client
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.harness.counting_proxy import counting_proxy
from benchmarks.report import Results, tables
from benchmarks.tables.spark import NotEnoughSpace, Scan, SparkFigures, measure_spark
from benchmarks.tables.spark_job import tree_cpu_seconds
from benchmarks.tables.spark_kafka import QUERIES, READERS, contenders
from benchmarks.tables.spark_load import RECORD_BYTES, records
from tests.unit.benchmarks.test_report import row_of

SCANS = {
    "tidelog all": Scan(4.0, 3.0),
    "parquet all": Scan(2.0, 2.0),
    "tidelog pruned": Scan(3.0, 2.0),
    "parquet pruned": Scan(1.0, 1.0),
}


def figures() -> SparkFigures:
    return SparkFigures(
        parquet=[("filesystem", 0.5, SCANS), ("MinIO", 0.5, SCANS)],
        requests_a_gb={"tidelog all": 60.0, "parquet all": 90.0},
        microbatch_ms={"tidelog": 240.0, "files": 200.0},
        fresh_p50_ms=300.0,
        fresh_max_ms=900.0,
    )


def test_scans_are_set_against_sparks_own_reader_by_cpu_and_time() -> None:
    document = tables(Results("make bench", spark=figures()))
    cells = row_of(document, "filesystem")
    assert cells[1:] == ["0.50", "all", "6.00", "4.00", "1.50", "4.00", "2.00", "2.00", "-"]
    assert row_of(document, "MinIO")[-1] == "60, 90"
    assert row_of(document, "ratio")[1:] == ["1.20"]
    assert "connector" not in document


def test_kafkas_connector_is_named_by_how_much_slower_it_is() -> None:
    found = figures()
    found.kafka_gb = 0.5
    for query in QUERIES:
        found.kafka[f"kafka {query}"] = Scan(10.0, 12.0)
        found.kafka[f"tidelog {query}"] = Scan(2.0, 4.0)
        found.kafka[f"read {query}"] = Scan(1.0, 2.0)
    document = tables(Results("make bench", spark=found))
    cells = row_of(document, QUERIES["all"])
    assert cells[1:] == ["10.00", "2.00", "5.0", "1.00", "10.0", "12.00", "4.00", "2.00"]
    assert row_of(document, QUERIES["where time"])[3] == "5.0"


def test_each_query_is_asked_of_each_reader_in_its_own_way() -> None:
    found = contenders("file:///bucket", "host:1", "topic", 2, 1000, first_ms=5000)
    assert list(found) == [f"{reader} {query}" for query in QUERIES for reader in READERS]
    connector, source, united = (found[f"{reader} by offset"] for reader in READERS)
    assert source["options"] == {
        "startingOffsets": '{"topic": {"0": 250, "1": 250}}',
        "endingOffsets": '{"topic": {"0": 255, "1": 255}}',
    }
    assert connector["options"] == source["options"] | {
        "kafka.bootstrap.servers": "host:1",
        "startingOffsets": source["options"]["startingOffsets"],
    }
    assert united["selection"] == {"offsets": (250, 255)}
    assert found["read by time"]["selection"] == {"since": 5500, "until": 5510}
    connector, source, united = (found[f"{reader} where time"] for reader in READERS)
    assert connector["where"] == source["where"] == united["where"]
    assert "timestamp_millis(5500)" in united["where"]
    assert "timestamp_millis(5510)" in united["where"]
    assert source["options"] == {}


def test_a_disk_that_is_too_small_is_said_before(tmp_path: Path) -> None:
    with pytest.raises(NotEnoughSpace, match="make room, set TMPDIR, or measure a --share"):
        measure_spark(tmp_path, tmp_path, share=1e9, without=[])


def test_a_missing_download_is_named() -> None:
    found = figures()
    found.missing.append(("Spark's Kafka connector", "Maven could not fetch it:\nmuch more"))
    document = tables(Results("make bench", spark=found))
    assert "Not measured: Spark's Kafka connector. Maven could not fetch it." in document
    assert "much more" not in document


def test_requests_are_counted_and_passed_on() -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"GET ")

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with counting_proxy(f"http://127.0.0.1:{server.server_port}") as proxy:
            client = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=30)
            for _ in range(3):
                client.request("GET", "/")
                assert client.getresponse().read() == b"GET "
            client.close()
        assert proxy.requests == {"GET": 3}
        server.shutdown()


def test_records_are_the_same_each_time_and_of_one_size() -> None:
    found = records()
    assert found == records()
    assert {len(key) + len(value) for key, value in found} == {RECORD_BYTES}


def test_cpu_of_a_process_that_has_worked_is_counted() -> None:
    before = tree_cpu_seconds(os.getpid())
    while tree_cpu_seconds(os.getpid()) == before:
        sum(range(100_000))
