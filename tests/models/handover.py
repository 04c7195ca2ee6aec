"""A model of partitions that change their owner together (rules C2 to C5, F1, F3, A1, A4).

Two partitions and three incarnations. An owner gives one or both partitions away: it writes one
hand-over object with their images and appends one entry with a `Moved` for each. The PUT of that
entry may land at any time later. Its number stays free until another entry takes it, so the giver
does not know the outcome before the number is taken. A partition may return to its old owner. Any
process may die between two steps. A living broker fences, seals and retires another one; an entry
`Retired` may be too small for all successors. A collector marks hand-over objects and retired WALs,
and deletes marked objects at any later time.

Reading is one step here: `ownership` explores openers that read while objects are deleted.

In every state: an offset is given out once, an opener finds the whole log, and from the bucket the
whole log can be recovered. From every state a state can be reached in which a living broker serves
each partition, unless all are dead.

A collector may delete a hand-over object that no tenure names in three cases: the giver is fenced,
so that no entry of its own can land; the giver itself deletes it, knowing the outcome; or the
metadata log has an entry that is younger than the object by more than the grace, since that entry
took the number of any older PUT. For the last case, a giver PUTs no entry that names an object
older than half the grace; a grace passes at once here, so that any pause is longer than it.

The model refutes two other rules.

1. "An object that no tenure names may go a grace after it was written" (variant BY_AGE): broker 0
   writes the object; its PUT of `Moved` is delayed; a collector marks the object; the PUT lands,
   since nothing has taken its number; the object is deleted; the receiver has no base. A number
   stays free for hours in an idle cluster, so no grace helps.
2. "An object may go when every tenure that names it has opened" (variant NAMED_TWICE): of two moves
   in one object the first is applied and its receiver opens; the giver names the object in a second
   entry for the other partition. So an object is named in one entry at most: a giver writes a new
   object for each further attempt.

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
from tests.models.handover_world import (
    ACCEPTS,
    APPLIED,
    BROKERS,
    BY_AGE,
    FENCER_FINISHES,
    FLYING,
    NAMED_TWICE,
    NEVER_OPENED,
    NO_SEAL,
    NOT_VALIDATED,
    OLD_LOG,
    OLD_NAMED,
    ONE_OPENED,
    REFUSED_DROPPED,
    RETIRER_ASSIGNS,
    TAKEN,
    UNASSIGNED,
    UNKNOWN_APPLIED,
    UNKNOWN_REFUSED,
    VARIANTS,
    WIDE,
    Limits,
    Local,
    Log,
    Object,
    Put,
    Tenure,
    World,
    beginning,
    check,
    entered,
    is_served,
    recovered,
)
from tests.models.ownership_world import put as changed

Steps: TypeAlias = Iterator[tuple[str, World]]


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
        if is_too_old(actor):
            yield actor.to("the object is too old", me._replace(logs=served_again(me, given)))
            return
        receivers = [each for each in BROKERS if each != number and world.lives(each)]
        for chosen in product(receivers, repeat=len(given)):
            moves = tuple(zip(given, chosen, strict=True))
            yield actor.to(f"PUT of moves {moves}", me._replace(put=Put(moves)))
        if not receivers:
            yield actor.to("no receiver is left", me._replace(logs=served_again(me, given)))
    if me.put is not None:
        yield from outcome_steps(actor, me.put)


def is_too_old(actor: Actor) -> bool:
    """Whether the giver may no longer name its hand-over object."""
    assert actor.me.handover is not None
    found = actor.world.objects[actor.me.handover]
    return (found is None or found.is_old) and actor.variant != OLD_NAMED


def served_again(me: Local, partitions: tuple[int, ...]) -> tuple[Log | None, ...]:
    return tuple(
        log._replace(giving=False) if log is not None and p in partitions else log
        for p, log in enumerate(me.logs)
    )


def outcome_steps(actor: Actor, put: Put) -> Steps:
    """The giver reads the entry's number back. If another entry took it, the giver validates its
    moves again."""
    world, me, variant = actor.world, actor.me, actor.variant
    moved = tuple(partition for partition, _ in put.moves)
    dropped = tuple(None if p in moved else log for p, log in enumerate(me.logs))
    old = tuple(log if p in moved else me.old[p] for p, log in enumerate(me.logs))
    gone = me._replace(put=None, logs=dropped, old=old if variant == OLD_LOG else me.old)
    if put.outcome == FLYING:
        if variant == UNKNOWN_REFUSED:
            yield actor.to("serves again", me._replace(logs=served_again(me, moved)))
        if variant == UNKNOWN_APPLIED:
            # The PUT is lost, although the giver would have repeated it.
            yield actor.to("drops", gone)
    elif put.outcome == APPLIED:
        yield actor.to("learns that its moves are applied", gone)
    elif not world.lives(actor.number):
        yield actor.to("learns of its fence", me._replace(dead=True))
    else:
        usable = not is_too_old(actor)
        valid = tuple(each for each in put.moves if usable and world.lives(each[1]))
        refused = tuple(each[0] for each in put.moves if each not in valid)
        logs = served_again(me, refused)
        if variant == REFUSED_DROPPED:
            logs = tuple(None if p in refused else log for p, log in enumerate(me.logs))
        if variant == NAMED_TWICE:
            logs = me.logs
        again = me._replace(logs=logs, put=Put(valid) if valid else None)
        yield actor.to(f"PUT again, refused are {refused}", again)


def landing_steps(world: World, variant: str) -> Steps:
    """A PUT lands if its number is free. Its entry is then valid (A1)."""
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
    """Fence, seal, retire, assign: another broker finishes the steps of a dead one (C4)."""
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
    by_age = found.is_proved_old or (variant == BY_AGE and found.is_old)
    return own or not world.lives(found.giver) or by_name or by_age


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
        if world.graces < limits.graces:
            objects = tuple(each and each._replace(is_old=True) for each in world.objects)
            aged = world._replace(objects=objects, graces=world.graces + 1)
            yield "the grace passes", aged
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
