"""The limits of connections, and the reasons for which one more is refused."""

from __future__ import annotations

import pytest

from tidelog.broker.fairness.connection_limits import (
    ConnectionLimits,
    descriptors_left,
    host_limits,
)
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.errors import Refused

HOST, OTHER = "10.0.0.1", "10.0.0.2"


def limits(descriptors_max: int | None = None, **settings: object) -> ConnectionLimits:
    configured = BrokerSettings.of(**settings)
    return ConnectionLimits(lambda: configured, descriptors_left(configured, descriptors_max))


def test_file_descriptors_are_kept_from_connections() -> None:
    served = limits(300, file_descriptors_reserved=200)
    for _ in range(100):
        assert served.violated(HOST) is None
        served.opened(HOST)
    assert served.violated(HOST) == "file.descriptors.reserved"
    served.closed(HOST)
    assert served.violated(HOST) is None


def test_the_lower_of_both_limits_holds() -> None:
    served = limits(300, file_descriptors_reserved=200, max_connections=1)
    served.opened(HOST)
    assert served.violated(OTHER) == "max.connections"


def test_a_process_without_a_limit_has_that_of_the_settings_alone() -> None:
    served = limits(max_connections=2)
    served.opened(HOST)
    assert served.violated(HOST) is None
    served.opened(HOST)
    assert served.violated(HOST) == "max.connections"


def test_an_altered_limit_holds_at_once() -> None:
    altered = {"max_connections": 1}
    served = ConnectionLimits(lambda: BrokerSettings.of(**altered))
    served.opened(HOST)
    assert served.violated(HOST) == "max.connections"
    altered["max_connections"] = 2
    assert served.violated(HOST) is None


def test_too_few_file_descriptors_are_refused_with_the_remedy() -> None:
    with pytest.raises(Refused, match=r"may have 192 file descriptors.*keeps 192.*ulimit -n"):
        limits(192, file_descriptors_reserved=192)


def test_each_address_is_counted_by_itself() -> None:
    served = limits(max_connections_per_ip=1, max_connections_per_ip_overrides=f"{OTHER}:2")
    for host in (HOST, OTHER):
        served.opened(host)
    assert served.violated(HOST) == "max.connections.per.ip"
    assert served.violated(OTHER) is None
    served.opened(OTHER)
    assert served.violated(OTHER) == "max.connections.per.ip"
    served.closed(HOST)
    assert served.violated(HOST) is None


def test_overrides_may_hold_addresses_with_colons() -> None:
    assert host_limits("::1:5,10.0.0.1:0") == {"::1": 5, "10.0.0.1": 0}
