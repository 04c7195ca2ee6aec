"""The hand-over model's world: metadata log, bucket and memories, the reads, and the invariants."""

from __future__ import annotations

from typing import NamedTuple

from tests.models.explorer import Violation

BROKERS = range(3)
FLYING, APPLIED, TAKEN = "flying", "applied", "taken"


class Limits(NamedTuple):
    """The limits of the world."""

    partitions: int = 2
    gives: int = 1
    appends: int = 1
    crashes: int = 1
    fences: int = 1
    """The number of living brokers that may be fenced. A dead broker can always be fenced."""
    successors: int = 2
    """How many partitions one `Retired` reassigns."""
    graces: int = 0
    """The number of times that the grace passes."""


NARROW = Limits(crashes=0)
WIDE = Limits(gives=4, appends=4, crashes=2, fences=2, successors=1, graces=2)
RETURNS = Limits(partitions=1, gives=2, appends=2, crashes=1, fences=1)
TAKEOVER = Limits(gives=0, appends=1, crashes=2, fences=1, successors=1)

UNKNOWN_REFUSED = "an unknown outcome is taken for a refusal"
UNKNOWN_APPLIED = "an unknown outcome is taken for a success"
REFUSED_DROPPED = "a refused partition is dropped"
OLD_LOG = "the old log is used when the partition comes back"
ACCEPTS = "accepts behind the image"
NOT_VALIDATED = "a move is not validated against the entry before"
BY_AGE = "an object that no tenure names goes by its age"
OLD_NAMED = "a giver names an old object"
NAMED_TWICE = "an object is named in a second entry"
ONE_OPENED = "an object goes when one of its tenures has opened"
NEVER_OPENED = "an object goes when its moves are applied"
FENCER_FINISHES = "only the fencer finishes a fence"
RETIRER_ASSIGNS = "only the retirer assigns partitions that Retired left out"
UNASSIGNED = "a retired WAL goes that an unassigned partition names"
NO_SEAL = "no seal before Retired"

VARIANTS = {
    UNKNOWN_REFUSED: Limits(partitions=1, crashes=0, fences=0),
    UNKNOWN_APPLIED: Limits(partitions=1, crashes=0, fences=1),
    REFUSED_DROPPED: Limits(partitions=1, appends=0, crashes=0),
    OLD_LOG: RETURNS._replace(crashes=0, fences=0),
    ACCEPTS: Limits(partitions=1, crashes=0, fences=0),
    NOT_VALIDATED: Limits(partitions=1, crashes=0),
    BY_AGE: Limits(partitions=1, appends=0, crashes=0, fences=0, graces=1),
    OLD_NAMED: Limits(partitions=1, appends=0, crashes=0, graces=1),
    NAMED_TWICE: Limits(appends=0, crashes=0),
    ONE_OPENED: Limits(appends=0, crashes=0, fences=0),
    NEVER_OPENED: Limits(partitions=1, appends=0, crashes=0, fences=0),
    FENCER_FINISHES: Limits(partitions=1, gives=0, appends=0),
    RETIRER_ASSIGNS: TAKEOVER,
    UNASSIGNED: TAKEOVER._replace(crashes=0),
    NO_SEAL: Limits(partitions=1, gives=0, crashes=0),
}
"""Broken variants, each with a small world in which it fails."""


class Tenure(NamedTuple):
    """`handover`: the number of the object with the image, None after a fence."""

    epoch: int
    broker: int
    handover: int | None = None


class Object(NamedTuple):
    """A hand-over object: the next offset of each partition in it."""

    giver: int
    images: tuple[tuple[int, int], ...]
    is_old: bool = False
    """Whether the grace has passed since the object was written."""
    is_proved_old: bool = False
    """Whether the metadata log has an entry from a time when the object was old."""


class Log(NamedTuple):
    """An opened partition in its owner's memory."""

    epoch: int
    next: int
    giving: bool = False


class Put(NamedTuple):
    """The PUT of an entry with moves (partition, receiver), and its outcome.

    It is in flight until it lands (applied), or another entry takes its number. The giver cannot
    see `outcome` before either has happened.
    """

    moves: tuple[tuple[int, int], ...]
    outcome: str = FLYING


class Local(NamedTuple):
    """A broker's memory."""

    logs: tuple[Log | None, ...]
    old: tuple[Log | None, ...]
    """For OLD_LOG: the logs that the broker gave away."""
    handover: int | None = None
    put: Put | None = None
    """The one entry of the giver that is in flight (A3)."""
    dead: bool = False


class World(NamedTuple):
    """Metadata log, bucket, memories, and ghost variables with the true values."""

    tenures: tuple[tuple[Tenure, ...], ...]
    fenced: tuple[tuple[int, int], ...]
    """(incarnation, its fencer)."""
    sealed: frozenset[int]
    retired: tuple[tuple[int, int], ...]
    """(incarnation, its retirer)."""
    wals: frozenset[tuple[int, int, int, int]]
    """(broker, partition, leader epoch, next offset): the state to which the WALs lead."""
    collected: frozenset[int]
    """Incarnations whose WAL was deleted."""
    objects: tuple[Object | None, ...]
    """None for a deleted object."""
    named: frozenset[int]
    """The objects that some entry has named."""
    marked: frozenset[int]
    truth: tuple[int, ...]
    """How many records of each partition were acknowledged."""
    brokers: tuple[Local, ...]
    gives: int = 0
    crashes: int = 0
    fences: int = 0
    graces: int = 0

    def lives(self, broker: int) -> bool:
        """Whether the broker is not fenced."""
        return all(victim != broker for victim, _ in self.fenced)

    def is_retired(self, broker: int) -> bool:
        return any(victim == broker for victim, _ in self.retired)


def beginning(limits: Limits) -> World:
    """Broker 0 serves all partitions, which are empty."""
    count = limits.partitions
    none: frozenset[int] = frozenset()
    idle = Local((None,) * count, (None,) * count)
    return World(
        tenures=((Tenure(0, 0),),) * count,
        fenced=(),
        sealed=none,
        retired=(),
        wals=frozenset((0, partition, 0, 0) for partition in range(count)),
        collected=none,
        objects=(),
        named=none,
        marked=none,
        truth=(0,) * count,
        brokers=(idle._replace(logs=(Log(0, 0),) * count), idle, idle),
    )


def entered(world: World, author: int | None = None) -> World:
    """The world with one more metadata entry, whose number no PUT in flight can get any more."""
    brokers = tuple(
        me._replace(put=me.put._replace(outcome=TAKEN))
        if me.put is not None and me.put.outcome == FLYING and number != author
        else me
        for number, me in enumerate(world.brokers)
    )
    objects = tuple(each and each._replace(is_proved_old=each.is_old) for each in world.objects)
    return world._replace(brokers=brokers, objects=objects)


def recovered(world: World, partition: int) -> int:
    """The next offset by the bucket: the base, from the newest tenure back (C5)."""
    for tenure in reversed(world.tenures[partition]):
        if tenure.broker in world.collected:
            raise Violation(f"the WAL of {tenure.broker} is gone, {tenure} needs it")
        for broker, of, epoch, following in world.wals:
            if (broker, of, epoch) == (tenure.broker, partition, tenure.epoch):
                return following
        if tenure.handover is not None:
            found = world.objects[tenure.handover]
            if found is None:
                raise Violation(f"hand-over object {tenure.handover} is gone, {tenure} needs it")
            return dict(found.images)[partition]
    raise Violation(f"partition {partition} has no base in {world.tenures[partition]}")


def check(world: World) -> None:
    """Check the rules that hold in every state."""
    for partition, length in enumerate(world.truth):
        found = recovered(world, partition)
        if found != length:
            raise Violation(f"recovered {found} of {length} records of partition {partition}")


def is_served(world: World) -> bool:
    """The goal: a living broker serves each partition, unless none lives."""
    if all(me.dead or not world.lives(number) for number, me in enumerate(world.brokers)):
        return True
    for partition, tenures in enumerate(world.tenures):
        owner = tenures[-1]
        me = world.brokers[owner.broker]
        log = me.logs[partition]
        if me.dead or log is None or log.giving or log.epoch != owner.epoch:
            return False
    return True
