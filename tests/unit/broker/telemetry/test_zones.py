"""Clients name their zones, and the broker counts the bytes that cross zones."""

from __future__ import annotations

import pytest

from tests.unit.broker.one_broker import World, batch, produce_request, run
from tidelog.broker.handlers.data.fetch import fetch
from tidelog.broker.handlers.data.produce import produce
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.telemetry.zones import (
    CLIENT_ID_LENGTH_MAX,
    Crossing,
    crossing,
    named_zone,
)
from tidelog.clock import SystemClock
from tidelog.protocol.schemas.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.storage.stores.memory import MemoryStore


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        ("zone=a", "a"),
        ("app,zone=eu-west-1a", "eu-west-1a"),
        ("app_ws_az=use1-az4,more=1", "use1-az4"),
        ("app;diskless_az=b;x", "b"),
        ("app zone=b c", "b"),
        ("timezone=utc", None),
        ("zone=", None),
        ("app", None),
        ("", None),
    ],
)
def test_a_client_id_may_name_a_zone(client_id: str, zone: str | None) -> None:
    assert named_zone(client_id) == zone


def test_bytes_cross_zones_only_if_both_zones_are_known() -> None:
    assert crossing("a", "app,zone=a") is Crossing.SAME
    assert crossing("a", "app,zone=b") is Crossing.OTHER
    assert crossing("a", "app,zone=b", "a") is Crossing.SAME, "client.rack comes first"
    assert crossing("a", None, "b") is Crossing.OTHER
    long = "x" * CLIENT_ID_LENGTH_MAX + ",zone=a"
    for own, client_id in ((None, "zone=a"), ("a", "app"), ("a", None), ("a", long)):
        assert crossing(own, client_id) is Crossing.UNKNOWN


def test_produced_and_fetched_bytes_are_counted_by_zone() -> None:
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0, broker_rack="a")

    async def story() -> None:
        async with here.broker(1) as one:
            await one.create_topic()
            data, services = batch(b"x" * 100), one.broker.services.data

            def context(version: int, client_id: str) -> RequestContext:
                return RequestContext(version, 1, client_id, "127.0.0.1", 1)

            for client_id, times in (("p,zone=a", 1), ("p,zone=b", 2), ("p", 3)):
                for _ in range(times):
                    request = produce_request("flights", 0, data, -1, 5000)
                    await produce(services, request, context(9, client_id))
            found = dict(one.broker.metrics.produced_zone_bytes.items())
            size = len(data)
            assert found == {"same": size, "other": 2 * size, "unknown": 3 * size}
            wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            read = FetchRequest(
                max_bytes=1 << 20,
                rack_id="b",
                topics=[FetchTopic(topic="flights", partitions=[wanted])],
            )
            await fetch(services, read, context(12, "c,zone=a"))
            assert dict(one.broker.metrics.fetched_zone_bytes.items()) == {"other": 6 * size}
            page = one.broker.metrics.exposition().decode()
            assert f'tidelog_fetched_zone_bytes_total{{zone="other"}} {6.0 * size}' in page

    run(story)
