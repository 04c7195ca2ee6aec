"""A zone is wanted for a coordinator if the zone makes most of its many requests."""

from __future__ import annotations

from uuid import UUID

from tidelog.coordinator.cluster.membership.zone_use import (
    HALF_LIFE_SECONDS,
    USES_MIN,
    ZONE_LENGTH_MAX,
    ZONES_MAX,
    ZoneUse,
)
from tidelog.identifiers import TopicPartition

PLACE = TopicPartition(UUID(int=1), 0)
MANY = round(USES_MIN) * 3


def used(**uses: int) -> ZoneUse:
    found = ZoneUse()
    for zone, count in uses.items():
        for _ in range(count):
            found.note(PLACE, zone)
    return found


def test_most_of_many_requests_decide() -> None:
    assert used(a=MANY).wanted([PLACE], 0.0) == {PLACE: "a"}
    assert used(a=MANY, b=MANY // 2).wanted([PLACE], 0.0) == {PLACE: "a"}
    assert used(a=MANY, b=MANY // 2 + 1).wanted([PLACE], 0.0) == {}
    assert used(a=round(USES_MIN) - 1).wanted([PLACE], 0.0) == {}


def test_requests_of_unknown_zones_count_against_each_zone() -> None:
    use = used(a=MANY)
    for _ in range(MANY):
        use.note(PLACE, None)
    assert use.wanted([PLACE], 0.0) == {}


def test_clients_that_move_are_followed_when_their_old_requests_have_faded() -> None:
    use = used(a=MANY)
    assert use.wanted([PLACE], 1000.0) == {PLACE: "a"}
    for _ in range(MANY):
        use.note(PLACE, "b")
    assert use.wanted([PLACE], 1000.0) == {}
    assert use.wanted([PLACE], 1000.0 + HALF_LIFE_SECONDS) == {}, "both fade alike"
    for _ in range(MANY):
        use.note(PLACE, "b")
    assert use.wanted([PLACE], 1000.0 + HALF_LIFE_SECONDS) == {PLACE: "b"}
    assert use.wanted([PLACE], 1000.0 + 20 * HALF_LIFE_SECONDS) == {}, "all uses are old"


def test_made_up_zones_and_left_partitions_take_no_memory() -> None:
    use = used(a=MANY)
    for number in range(10 * ZONES_MAX):
        use.note(PLACE, f"made-up-{number}")
    assert use.wanted([PLACE], 0.0) == {PLACE: "a"}, "the least used goes"
    assert use.counted(PLACE) <= ZONES_MAX + 1
    for _ in range(MANY * 9):
        use.note(PLACE, "z" * (ZONE_LENGTH_MAX + 1))
    assert use.wanted([PLACE], 0.0) == {}
    assert use.wanted([], 0.0) == {}
    assert use.counted(PLACE) == 0, "the partition has left"
