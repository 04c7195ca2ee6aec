"""How many connections an address may open in a second."""

from __future__ import annotations

import asyncio

from tests.unit.broker.loopback import run, serving
from tests.unit.broker.network.served import describe
from tidelog.broker.quotas.connection_rates import ConnectionRates
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.coordinator.cluster.records.client_quotas import DEFAULT_NAME, QuotaEntity
from tidelog.protocol.api import ApiKey
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)

HOST, OTHER = "10.0.0.1", "10.0.0.2"


def rates(**by_host: float) -> ConnectionRates:
    """Quotas of HOST (`host`) and of all others (`default`)."""
    found = ConnectionRates(BrokerSettings.of)
    names = {"host": HOST, "default": DEFAULT_NAME}
    found.renew(
        {
            QuotaEntity(ip=names[name]): {"connection_creation_rate": value}
            for name, value in by_host.items()
        }
    )
    return found


def opened(found: ConnectionRates, host: str, tries: int, now: float) -> int:
    return sum(found.admits(host, now) for _ in range(tries))


def test_without_quotas_every_connection_is_admitted() -> None:
    assert opened(rates(), HOST, 1000, 0.0) == 1000
    assert opened(rates(host=1), OTHER, 1000, 0.0) == 1000


def test_an_address_opens_ten_seconds_worth_and_then_its_rate() -> None:
    found = rates(host=5)
    assert opened(found, HOST, 1000, 0.0) == 50
    admitted = sum(opened(found, HOST, 100, second / 10) for second in range(1, 1001))
    assert 450 <= admitted <= 550
    assert opened(found, OTHER, 100, 100.0) == 100


def test_the_default_is_of_each_address_without_a_quota_of_its_own() -> None:
    found = rates(host=2, default=1)
    assert opened(found, HOST, 100, 0.0) == 20
    assert opened(found, OTHER, 100, 0.0) == 10
    assert opened(found, "10.0.0.3", 100, 0.0) == 10
    # One address, however it is written.
    assert opened(found, "::ffff:10.0.0.1", 100, 0.0) == 0


def test_a_changed_quota_keeps_what_was_opened() -> None:
    found = rates(host=1)
    assert opened(found, HOST, 100, 0.0) == 10
    found.renew({QuotaEntity(ip=HOST): {"connection_creation_rate": 3.0}})
    assert opened(found, HOST, 100, 0.0) == 20
    found.renew({})
    assert opened(found, HOST, 100, 0.0) == 100


def test_the_addresses_that_were_idle_for_longest_are_forgotten() -> None:
    found = ConnectionRates(lambda: BrokerSettings.of(quota_clients_max=1))
    found.renew({QuotaEntity(ip=DEFAULT_NAME): {"connection_creation_rate": 1.0}})
    assert opened(found, HOST, 100, 0.0) == 10
    assert opened(found, OTHER, 100, 0.0) == 10
    assert opened(found, HOST, 100, 0.0) == 10


def test_a_server_closes_connections_over_the_rate_at_once() -> None:
    async def main() -> None:
        async with serving({ApiKey.DESCRIBE_CLUSTER: describe}) as broker:
            rate = {"connection_creation_rate": 1.0}
            broker.connection_rates.renew({QuotaEntity(ip="127.0.0.1"): rate})
            clients = [await broker.connect() for _ in range(10)]
            request = DescribeClusterRequest()
            await asyncio.gather(
                *[each.ask(request, DescribeClusterResponse, 0) for each in clients]
            )
            assert await (await broker.connect()).closed()
            refused = broker.metrics.connections_refused.items()
            assert refused == [("connection_creation_rate", 1)]
            broker.connection_rates.renew({})
            await (await broker.connect()).ask(request, DescribeClusterResponse, 0)

    run(main())
