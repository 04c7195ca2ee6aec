"""Which connection gives way when the limit of connections is reached."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.broker.fairness.connection_limits import (
    FOUND_AT_ONCE,
    PAUSE_SECONDS,
    Displacement,
    Idleness,
)


@dataclass
class Connection:
    active: float
    is_established: bool = False
    is_working: bool = False

    def idleness(self) -> Idleness | None:
        return None if self.is_working else Idleness(self.is_established, self.active)


def test_connections_with_few_requests_go_first_the_longest_idle_before_the_rest() -> None:
    old, young = Connection(1.0), Connection(2.0)
    steady = Connection(0.5, is_established=True)
    displacement = Displacement(lambda: [steady, young, old])
    assert [displacement.next(10.0) for _ in range(4)] == [old, young, steady, None]


def test_a_connection_that_works_keeps_its_place() -> None:
    working, other = Connection(1.0, is_working=True), Connection(2.0)
    displacement = Displacement(lambda: [working, other])
    assert displacement.next(10.0) is other
    assert displacement.next(10.0) is None


def test_a_connection_with_a_request_since_the_scan_stays() -> None:
    first, second = Connection(1.0), Connection(2.0)
    displacement = Displacement(lambda: [first, second, Connection(3.0)])
    assert displacement.next(10.0) is first
    second.active = 10.0
    assert displacement.next(10.0) == Connection(3.0)


def test_all_connections_are_looked_at_now_and_then_only() -> None:
    looks = 0

    def connections() -> list[Connection]:
        nonlocal looks
        looks += 1
        return [Connection(float(number)) for number in range(2 * FOUND_AT_ONCE)]

    displacement = Displacement(connections)
    found = [displacement.next(10.0) for _ in range(FOUND_AT_ONCE + 1)]
    assert found[-1] is None
    assert looks == 1
    assert displacement.next(10.0 + 2 * PAUSE_SECONDS) == Connection(0.0)
    assert looks == 2
