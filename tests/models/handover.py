"""A model of partitions that change their owner together (rules C2 to C5, F1, F3, A1, A4).

Two partitions and three incarnations. An owner gives one or both partitions away: it writes one
hand-over object with their images and appends one entry with a `Moved` for each. The PUT of that
entry may land at any time later. Its number stays free until another entry takes it, so the giver
does not know the outcome before the number is taken. A partition may return to its old owner.
Any process may die between two steps. A living broker fences, seals and retires another one; an
entry `Retired` may be too small for all successors. A collector marks hand-over objects and retired
WALs, and deletes what is marked at any later time.

Reading is one step here: `ownership` explores openers that read while objects are deleted.

In every state: an offset is given out once, an opener finds the whole log, and from the bucket the
whole log can be recovered. From every state a state can be reached in which a living broker serves
each partition, unless all are dead.

The model refutes two rules for hand-over objects.

1. "An object that no tenure names may go a grace after it was written" (variant BY_AGE):
   broker 0 writes the object; its PUT of `Moved` is delayed; a collector marks the object; the PUT
   lands, since nothing has taken its number; the object is deleted; the receiver has no base. A
   number stays free for hours in an idle cluster, so no grace helps. A fence of the giver takes the
   number. So the collector deletes the unnamed objects of fenced givers only, and a living giver
   deletes its own when the outcome is known.
2. "An object may go when every tenure that names it has opened" (variant NAMED_TWICE): of two moves
   in one object the first is applied and its receiver opens; the giver names the object in a second
   entry for the other partition. So an object is named in one entry at most: a giver writes a
   new object for each further attempt.

    python -m tests.models.handover              the protocol, all states
    python -m tests.models.handover --walks      long random runs with wider limits
    python -m tests.models.handover --variants   each broken variant is caught
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple, TypeAlias

from tests.models.explorer import Model, Outcome, Violation, catch_all, explore_or_walk
from tests.models.ownership_world import put as changed

BROKERS = range(3)
FLYING, APPLIED, TAKEN = "flying", "applied", "taken"


class Limits(NamedTuple):
    """How far the world goes."""

    partitions: int = 2
    gives: int = 1
    appends: int = 1
    crashes: int = 1
    fences: int = 1
    """Of brokers that live. A dead broker can always be fenced."""
    successors: int = 2
    """How many partitions one `Retired` reassigns."""


NARROW = Limits(crashes=0)
WIDE = Limits(gives=4, appends=4, crashes=2, fences=2, successors=1)
RETURNS = Limits(partitions=1, gives=2, appends=2, crashes=1, fences=1)
TAKEOVER = Limits(gives=0, appends=1, crashes=2, fences=1, successors=1)

UNKNOWN_REFUSED = "an unknown outcome is taken for a refusal"
UNKNOWN_APPLIED = "an unknown outcome is taken for a success"
REFUSED_DROPPED = "a refused partition is dropped"
OLD_LOG = "the old log is used when the partition comes back"
ACCEPTS = "accepts behind the image"
NOT_VALIDATED = "a move is not validated against the entry before"
BY_AGE = "an object goes that no tenure names yet"
NAMED_TWICE = "an object is named in a second entry"
ONE_OPENED = "an object goes when one of its tenures has opened"
NEVER_OPENED = "an object goes when its moves are applied"
FENCER_FINISHES = "only the fencer finishes a fence"
RETIRER_ASSIGNS = "only the retirer assigns what Retired left out"
UNASSIGNED = "a retired WAL goes that an unassigned partition names"
NO_SEAL = "no seal before Retired"

VARIANTS = {
    UNKNOWN_REFUSED: Limits(partitions=1, crashes=0, fences=0),
    UNKNOWN_APPLIED: Limits(partitions=1, crashes=0, fences=1),
    REFUSED_DROPPED: Limits(partitions=1, appends=0, crashes=0),
    OLD_LOG: RETURNS._replace(crashes=0, fences=0),
    ACCEPTS: Limits(partitions=1, crashes=0, fences=0),
    NOT_VALIDATED: Limits(partitions=1, crashes=0),
    BY_AGE: Limits(partitions=1, appends=0, crashes=0, fences=0),
    NAMED_TWICE: Limits(appends=0, crashes=0),
    ONE_OPENED: Limits(appends=0, crashes=0, fences=0),
    NEVER_OPENED: Limits(partitions=1, appends=0, crashes=0, fences=0),
    FENCER_FINISHES: Limits(partitions=1, gives=0, appends=0),
    RETIRER_ASSIGNS: TAKEOVER,
    UNASSIGNED: TAKEOVER._replace(crashes=0),
    NO_SEAL: Limits(partitions=1, gives=0, crashes=0),
}
"""Broken variants, and a small world in which each goes wrong."""


class Tenure(NamedTuple):
    """`handover`: the number of the object with the image, None after a fence."""

    epoch: int
    broker: int
    handover: int | None = None


class Object(NamedTuple):
    """A hand-over object: the next offset of each partition in it."""

    giver: int
    images: tuple[tuple[int, int], ...]


class Log(NamedTuple):
    """An opened partition in its owner's memory."""

    epoch: int
    next: int
    giving: bool = False


class Put(NamedTuple):
    """The PUT of an entry with moves (partition, receiver), and what became of it.

    It flies until it lands (applied), or another entry takes its number. The giver cannot see
    `outcome` before one of both has happened.
    """

    moves: tuple[tuple[int, int], ...]
    outcome: str = FLYING


class Local(NamedTuple):
    """A broker's memory."""

    logs: tuple[Log | None, ...]
    old: tuple[Log | None, ...]
    """Of OLD_LOG: what it gave away."""
    handover: int | None = None
    put: Put | None = None
    """The one entry that it has in flight (A3)."""
    dead: bool = False


class World(NamedTuple):
    """Metadata log, bucket, memories, and the ghost of what is true."""

    tenures: tuple[tuple[Tenure, ...], ...]
    fenced: tuple[tuple[int, int], ...]
    """(incarnation, its fencer)."""
    sealed: frozenset[int]
    retired: tuple[tuple[int, int], ...]
    """(incarnation, its retirer)."""
    wals: frozenset[tuple[int, int, int, int]]
    """(broker, partition, leader epoch, next offset): what the WALs lead to."""
    collected: frozenset[int]
    """Incarnations whose WAL was deleted."""
    objects: tuple[Object | None, ...]
    """None: deleted."""
    named: frozenset[int]
    """The objects that some entry has named."""
    marked: frozenset[int]
    truth: tuple[int, ...]
    """How many records of each partition were acknowledged."""
    brokers: tuple[Local, ...]
    gives: int = 0
    crashes: int = 0
    fences: int = 0

    def lives(self, broker: int) -> bool:
        """Whether it is not fenced."""
        return all(victim != broker for victim, _ in self.fenced)

    def is_retired(self, broker: int) -> bool:
        return any(victim == broker for victim, _ in self.retired)


Steps: TypeAlias = Iterator[tuple[str, World]]


def beginning(limits: Limits) -> World:
    """Broker 0 serves all partitions; they are empty."""
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
    """The world with one more metadata entry: it takes the number of all others in flight."""
    brokers = tuple(
        me._replace(put=me.put._replace(outcome=TAKEN))
        if me.put is not None and me.put.outcome == FLYING and number != author
        else me
        for number, me in enumerate(world.brokers)
    )
    return world._replace(brokers=brokers)


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
    """What must hold in every state."""
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


class Actor(NamedTuple):
    """A broker that may take a step."""

    world: World
    limits: Limits
    variant: str
    number: int

    @property
    def me(self) -> Local:
        return self.world.brokers[self.number]

    def to(self, name: str, local: Local, world: World | None = None) -> tuple[str, World]:
        after = world or self.world
        return f"{name} by {self.number}", after._replace(
            brokers=changed(after.brokers, self.number, local)
        )

    def with_log(self, partition: int, log: Log | None) -> Local:
        return self.me._replace(logs=changed(self.me.logs, partition, log))

    def write(self, partition: int, epoch: int, following: int) -> World:
        """The world with an opening image, or a record, in this broker's WAL."""
        tenure = (self.number, partition, epoch)
        others = frozenset(each for each in self.world.wals if each[:3] != tenure)
        return self.world._replace(wals=others | {(*tenure, following)})


def serve_steps(actor: Actor, partition: int) -> Steps:
    """Open, accept a record, report `Opened`."""
    world, me, number = actor.world, actor.me, actor.number
    log, owner = me.logs[partition], world.tenures[partition][-1]
    name = f"partition {partition}"
    if log is None:
        tenure = (number, partition, owner.epoch)
        is_new = all(each[:3] != tenure for each in world.wals)
        if owner.broker != number or not world.lives(number) or not is_new:
            # A tenure is opened once.
            return
        old = me.old[partition]
        following = recovered(world, partition) if old is None else old.next
        if number in world.sealed:
            yield actor.to(f"{name}: the opening image meets the seal", me._replace(dead=True))
        else:
            opened = actor.with_log(partition, Log(owner.epoch, following))
            after = actor.write(partition, owner.epoch, following)
            yield actor.to(f"{name} is opened", opened, after)
        return
    accepts = not log.giving or actor.variant == ACCEPTS
    if accepts and sum(world.truth) < actor.limits.appends:
        if number in world.sealed:
            yield actor.to(f"{name}: an append meets the seal", me._replace(dead=True))
        else:
            length = world.truth[partition]
            if log.next != length:
                raise Violation(f"{number} gives out offset {log.next} of {name}, it has {length}")
            more = actor.with_log(partition, log._replace(next=length + 1))
            after = actor.write(partition, log.epoch, length + 1)
            after = after._replace(truth=changed(world.truth, partition, length + 1))
            yield actor.to(f"{name}: an append", more, after)
    is_current = (owner.broker, owner.epoch) == (number, log.epoch) and world.lives(number)
    forgets = len(world.tenures[partition]) > 1 or owner.handover is not None
    if is_current and forgets and me.put is None:
        alone = (owner._replace(handover=None),)
        after = entered(world._replace(tenures=changed(world.tenures, partition, alone)))
        yield actor.to(f"{name}: Opened", after.brokers[number], after)


def give_steps(actor: Actor) -> Steps:
    """Stop accepting, write the object, PUT the entry, learn its outcome (C3)."""
    world, me, number = actor.world, actor.me, actor.number
    given = tuple(p for p, log in enumerate(me.logs) if log is not None and log.giving)
    if not given and me.put is None and world.gives < actor.limits.gives:
        served = tuple(p for p, log in enumerate(me.logs) if log is not None)
        for chosen in {served, *((each,) for each in served)} - {()}:
            images = tuple((p, log.next) for p, log in enumerate(me.logs) if log and p in chosen)
            logs = tuple(
                log._replace(giving=True) if log and p in chosen else log
                for p, log in enumerate(me.logs)
            )
            after = world._replace(
                objects=(*world.objects, Object(number, images)), gives=world.gives + 1
            )
            giving = me._replace(logs=logs, handover=len(world.objects))
            yield actor.to(f"hand-over object of {chosen}", giving, after)
    if given and me.put is None:
        if not world.lives(number):
            yield actor.to("learns of its fence", me._replace(dead=True))
            return
        receivers = [each for each in BROKERS if each != number and world.lives(each)]
        for chosen in product(receivers, repeat=len(given)):
            moves = tuple(zip(given, chosen, strict=True))
            yield actor.to(f"PUT of moves {moves}", me._replace(put=Put(moves)))
        if not receivers:
            yield actor.to("no receiver is left", me._replace(logs=served_again(me, given)))
    if me.put is not None:
        yield from outcome_steps(actor, me.put)


def served_again(me: Local, partitions: tuple[int, ...]) -> tuple[Log | None, ...]:
    return tuple(
        log._replace(giving=False) if log is not None and p in partitions else log
        for p, log in enumerate(me.logs)
    )


def outcome_steps(actor: Actor, put: Put) -> Steps:
    """The giver reads the entry's number back; it validates its moves again if it was taken."""
    world, me, variant = actor.world, actor.me, actor.variant
    moved = tuple(partition for partition, _ in put.moves)
    dropped = tuple(None if p in moved else log for p, log in enumerate(me.logs))
    old = tuple(log if p in moved else me.old[p] for p, log in enumerate(me.logs))
    gone = me._replace(put=None, logs=dropped, old=old if variant == OLD_LOG else me.old)
    if put.outcome == FLYING:
        if variant == UNKNOWN_REFUSED:
            yield actor.to("serves again", me._replace(logs=served_again(me, moved)))
        if variant == UNKNOWN_APPLIED:
            # The PUT is lost; it would have been repeated.
            yield actor.to("drops", gone)
    elif put.outcome == APPLIED:
        yield actor.to("learns that its moves are applied", gone)
    elif not world.lives(actor.number):
        yield actor.to("learns of its fence", me._replace(dead=True))
    else:
        valid = tuple(each for each in put.moves if world.lives(each[1]))
        refused = tuple(partition for partition, to in put.moves if not world.lives(to))
        logs = served_again(me, refused)
        if variant == REFUSED_DROPPED:
            logs = tuple(None if p in refused else log for p, log in enumerate(me.logs))
        if variant == NAMED_TWICE:
            logs = me.logs
        again = me._replace(logs=logs, put=Put(valid) if valid else None)
        yield actor.to(f"PUT again, refused are {refused}", again)


def landing_steps(world: World, variant: str) -> Steps:
    """A PUT lands if its number is free: what it says is valid then (A1)."""
    for number, me in enumerate(world.brokers):
        put = me.put
        is_free = put is not None and (
            put.outcome == FLYING or (variant == NOT_VALIDATED and put.outcome == TAKEN)
        )
        if put is None or not is_free:
            continue
        tenures = world.tenures
        for partition, receiver in put.moves:
            before = tenures[partition]
            tenure = Tenure(before[-1].epoch + 1, receiver, me.handover)
            tenures = changed(tenures, partition, (*before, tenure))
        assert me.handover is not None
        applied = me._replace(put=put._replace(outcome=APPLIED))
        after = entered(world, author=number)._replace(
            tenures=tenures, named=world.named | {me.handover}
        )
        yield (
            f"the moves of {number} are applied",
            after._replace(brokers=changed(after.brokers, number, applied)),
        )


def fence_steps(actor: Actor) -> Steps:
    """Fence, seal, retire, assign: another broker finishes what a dead one has begun (C4)."""
    world, me, number = actor.world, actor.me, actor.number
    if not world.lives(number) or me.put is not None:
        return
    for victim in BROKERS:
        is_dead = world.brokers[victim].dead
        may = is_dead or world.fences < actor.limits.fences
        if victim != number and world.lives(victim) and may:
            after = entered(world)._replace(
                fenced=tuple(sorted((*world.fenced, (victim, number)))),
                fences=world.fences + (not is_dead),
            )
            yield f"{number} fences {victim}", after
    for victim, fencer in world.fenced:
        if fencer != number and actor.variant == FENCER_FINISHES:
            continue
        if victim not in world.sealed:
            yield f"{number} seals {victim}", world._replace(sealed=world.sealed | {victim})
        sealed = victim in world.sealed or actor.variant == NO_SEAL
        if sealed and not world.is_retired(victim):
            retired = tuple(sorted((*world.retired, (victim, number))))
            after = entered(world)._replace(retired=retired)
            orphans = orphaned(world, victim)[: actor.limits.successors]
            yield f"{number} retires {victim}", assigned(after, orphans, number)
    for victim, retirer in world.retired:
        if retirer != number and actor.variant == RETIRER_ASSIGNS:
            continue
        for partition in orphaned(world, victim):
            yield (
                f"{number} assigns partition {partition}",
                assigned(entered(world), (partition,), number),
            )


def orphaned(world: World, victim: int) -> tuple[int, ...]:
    """The partitions whose newest tenure names this incarnation."""
    return tuple(p for p, known in enumerate(world.tenures) if known[-1].broker == victim)


def assigned(world: World, partitions: tuple[int, ...], owner: int) -> World:
    tenures = world.tenures
    for partition in partitions:
        before = tenures[partition]
        tenure = Tenure(before[-1].epoch + 1, owner)
        tenures = changed(tenures, partition, (*before, tenure))
    return world._replace(tenures=tenures)


def superfluous(world: World, number: int, variant: str) -> bool:
    """Whether a collector may mark a hand-over object (F3)."""
    found = world.objects[number]
    if found is None:
        return False
    naming = [
        p for p, known in enumerate(world.tenures) if any(t.handover == number for t in known)
    ]
    if variant == ONE_OPENED and number in world.named:
        return len(naming) < len(found.images)
    if variant == NEVER_OPENED:
        return number in world.named
    if naming:
        return False
    giver = world.brokers[found.giver]
    is_current = giver.handover == number and (
        giver.put is not None or any(log and log.giving for log in giver.logs)
    )
    own = not giver.dead and not is_current
    by_name = number in world.named and variant == NAMED_TWICE
    return own or not world.lives(found.giver) or by_name or variant == BY_AGE


def collector_steps(world: World, variant: str) -> Steps:
    """Mark a hand-over object; delete it at any later time; delete a retired WAL (F1)."""
    for number in range(len(world.objects)):
        if number in world.marked:
            after = world._replace(
                objects=changed(world.objects, number, None), marked=world.marked - {number}
            )
            yield f"hand-over object {number} is deleted", after
        elif superfluous(world, number, variant):
            yield f"mark object {number}", world._replace(marked=world.marked | {number})
    for broker, _ in world.retired:
        counted = (known[:-1] if variant == UNASSIGNED else known for known in world.tenures)
        names = any(tenure.broker == broker for known in counted for tenure in known)
        if broker not in world.collected and not names:
            yield (
                f"the WAL of {broker} is deleted",
                world._replace(collected=world.collected | {broker}),
            )


def model(limits: Limits, variant: str = "") -> Model[World]:
    """The protocol, or one of its broken variants."""

    def steps(world: World) -> Steps:
        for number in BROKERS:
            actor = Actor(world, limits, variant, number)
            if actor.me.dead:
                continue
            for partition in range(limits.partitions):
                yield from serve_steps(actor, partition)
            yield from give_steps(actor)
            yield from fence_steps(actor)
            if world.crashes < limits.crashes:
                crashed = world._replace(crashes=world.crashes + 1)
                yield actor.to("death", actor.me._replace(dead=True), crashed)
        yield from landing_steps(world, variant)
        yield from collector_steps(world, variant)

    return Model(beginning(limits), steps, check, is_served)


def catch(variant: str) -> Outcome:
    """Look for a broken variant's violation."""
    return model(VARIANTS[variant], variant).explore(1_000_000)


def main(arguments: list[str]) -> int:
    if "--variants" in arguments:
        return catch_all(VARIANTS, catch)
    return explore_or_walk(arguments, model(Limits()), model(WIDE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
