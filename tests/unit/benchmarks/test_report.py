"""The benchmarks' report on given measurements."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.broker.distant import Distance, Distant, Feel, Felt, Price
from benchmarks.broker.recovery import Recovery
from benchmarks.broker.restarts import Life, Restarts
from benchmarks.broker.scale import Scale
from benchmarks.broker.throughput import KIB, MIB, Measured, Shape
from benchmarks.clients.clients import DIRECTIONS, ClientShape, ClientSpeed
from benchmarks.clients.loads import LOADS
from benchmarks.harness.latency import Latency
from benchmarks.harness.load import percentile
from benchmarks.harness.targets import Usage
from benchmarks.report import Results, tables
from benchmarks.tables.cold import Cold, ColdShape
from benchmarks.tables.conversion import ConversionShape, measure_conversion

SHAPE = Shape(KIB, 16, MIB, 1_000_000_000)
OURS = Measured(200.0, 1.5, 0.5, 300.0, 250.0, 10.0, 1.01)
PEERS = Measured(100.0, 3.0, 1.0, 600.0, 0.0, 0.0, 0.0)


def row_of(document: str, label: str) -> list[str]:
    """The cells of the first row with this label."""
    line = next(line for line in document.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_sets_our_figures_against_the_peers() -> None:
    found = {"tidelog": {"produce": OURS, "consume": OURS}}
    found["kafka"] = {"produce": PEERS, "consume": PEERS}

    cells = row_of(tables(Results("make bench", [(SHAPE, found)])), SHAPE.label)

    assert cells[1:4] == ["200", "100", "2.00"]
    assert cells[4:7] == ["1.50 (0.50)", "3.00 (1.00)", "0.50"]
    assert cells[7:] == ["300", "600", "250", "10", "1.010"]


def test_a_row_without_a_peer_has_no_comparison() -> None:
    found = {"tidelog": {"produce": OURS, "consume": OURS}}

    cells = row_of(tables(Results("make bench", [(SHAPE, found)])), SHAPE.label)

    assert cells[1:7] == ["200", "-", "-", "1.50 (0.50)", "-", "-"]


def test_a_peer_that_used_no_measurable_time_is_no_divisor() -> None:
    idle = replace(PEERS, cpu_seconds_a_gb=0.0)
    found = {"tidelog": {"produce": OURS, "consume": OURS}}
    found["kafka"] = {"produce": idle, "consume": idle}

    cells = row_of(tables(Results("make bench", [(SHAPE, found)])), SHAPE.label)

    assert cells[5:7] == ["-", "-"]


def test_measurements_beside_rolls_have_tables_of_their_own() -> None:
    rolls = replace(OURS, cpu_seconds_a_gb=6.0, bytes_put_a_byte=2.1)
    results = Results("make bench", rolling=[(SHAPE, {"produce": rolls, "consume": OURS})])

    document = tables(results)

    produce, consume = document.split("## Consume, rolled into segments at the same time")
    assert "## Produce, rolled into segments at the same time" in produce
    cells = row_of(produce, SHAPE.label)
    assert cells[1:] == ["200", "6.00 (0.50)", "300", "250", "10", "2.100"]
    assert row_of(consume, SHAPE.label)[2] == "1.50 (0.50)"


def test_an_acknowledgement_is_set_against_a_put_and_the_linger() -> None:
    results = Results("make bench", latency={"disk": (Latency(3.0, 9.0), Latency(4.0, 12.0), 5)})

    cells = row_of(tables(results), "disk")

    assert cells[1:] == ["3.00", "9.00", "4.00", "12.00", "5", "0.50", "1.00"]


def test_a_report_has_only_tables_of_taken_measurements() -> None:
    scale = Scale(80.0, 95.0, 0.5, 0.7, 0.004, 200.0, 198.0)

    document = tables(Results("make bench", scale=scale))

    assert "1,000 partitions" in document
    assert "## Produce" not in document
    assert "## Acknowledgement" not in document


def test_reads_from_segments_are_reported_a_row_a_shape() -> None:
    shape = ColdShape(KIB, 16, 1_000_000, "lz4", readers=4)
    results = Results("make bench", cold=[(shape, Cold(200.0, 4.0, 0.5, 300.0, 120.0, 0.51))])

    cells = row_of(tables(results), "1 KiB, 16 partitions, lz4, 4 readers of the same")

    assert cells[1:] == ["200", "250", "4.00 (0.50)", "300", "120", "0.51"]


def test_usage_is_the_difference_of_two_readings() -> None:
    before, after = Usage(1.0, 0.5, 10, 5, 1000, 500), Usage(3.5, 1.0, 14, 5, 1800, 500)

    assert after.since(before) == Usage(2.5, 0.5, 4, 0, 800, 0)


def test_a_percentile_of_few_values_is_one_of_the_values() -> None:
    assert percentile([1.0], 0.99) == 1.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0


def test_a_share_of_a_shape_has_fewer_records_and_the_same_name() -> None:
    part = SHAPE.share(0.1)

    assert part.records == SHAPE.total_bytes // 10 // KIB
    assert part.label == SHAPE.label


def test_conversion_is_measured_both_ways_and_reported_a_row_a_shape() -> None:
    shape = ConversionShape(100, 16, with_headers=True)
    found = measure_conversion(shape, 100_000)

    document = tables(Results("make bench", conversion=[(shape, found)]))

    assert min(found) > 0
    cells = row_of(document, "100 B, key and 2 headers, 16 a batch")
    assert cells[3] == f"{found.decode_seconds_a_gb + found.write_seconds_a_gb:.1f}"
    assert cells[6] == f"{found.read_seconds_a_gb + found.encode_seconds_a_gb:.1f}"
    assert cells[8] == f"{found.stored_bytes_a_byte:.2f}"


def test_a_recovery_from_the_snapshot_is_set_against_one_from_the_log() -> None:
    found = Recovery("many ids", 10, 1.0, 20.0, 2.0, 7.0, 3.0, 30.0, 100.0, 90.0)

    cells = row_of(tables(Results("make bench", recovery=[found])), "many ids")

    assert cells[1:] == ["3.0", "30.0", "100, 90", "1.0", "20.0", "2.0", "7"]


def test_the_tenth_restart_is_set_against_the_first() -> None:
    lives = [Life(9.0, 9.5), *(Life(1.0 + number, 2.0 + number) for number in range(10))]

    document = tables(Results("make bench", restarts=[Restarts("killed", lives, 110)]))

    cells = row_of(document, "killed")
    assert cells[1:] == ["11", "10", "1.00", "10.00", "10.00", "5.50, 5.50", "1.00", "6.50"]


def test_latencies_of_a_distant_store_are_in_its_puts() -> None:
    transaction = {"send_p50_ms": 205.0, "commit_p50_ms": 103.0, "commit_p99_ms": 110.0}
    felt = Felt(
        Distance(100, 30),
        [("librdkafka, 16 partitions", 31.6)],
        [Feel("Kafka's, 16 partitions", 0.2, 128.0, 188.0)],
        135.6,
        {**transaction, "puts": 3.2},
    )

    document = tables(Results("make bench", distant=Distant([felt])))

    assert row_of(document, "Kafka's, 16 partitions")[1:] == ["0.20", "128", "188", "1.28", "1.88"]
    assert row_of(document, "committed, p50")[1:] == ["103", "1.03"]


def test_the_cost_of_puts_stands_beside_a_peers_default() -> None:
    prices = [Price(rate, 10, rate, 235.0, 297.0, 10.0) for rate in (0.1, 100.0)]

    document = tables(Results("make bench", distant=Distant(prices=prices)))

    assert row_of(document, "0.1")[1:] == ["10", "0.10", "235", "297", "10.0", "130"]
    peers = [line for line in document.splitlines() if "AutoMQ" in line]
    # Four PUTs a second while 250 ms bring less than 8 MiB, and one for each 8 MiB above.
    assert [line.rsplit("|", 3)[1:3] for line in peers] == [[" 4.0 ", " 52 "], [" 11.9 ", " 154 "]]


def test_our_clients_stand_beside_their_peers() -> None:
    shape = ClientShape(100, 1000)
    speeds = {
        (shape, client, direction): ClientSpeed(90_000 if client == "tidelog" else 100_000, 3.14)
        for client in LOADS
        for direction in DIRECTIONS
    }

    document = tables(Results("make bench", clients=speeds))

    (line,) = [each for each in document.splitlines() if each.startswith("| 100 B | tidelog |")]
    ratios = "0.90 of confluent-kafka, 0.90 of confluent-kafka poll"
    assert line.count(f" 90,000 | {ratios} | 3.1 |") == len(DIRECTIONS)
