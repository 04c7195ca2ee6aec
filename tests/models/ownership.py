"""A model of a partition's ownership: tenures, hand-over, fencing, checkpoints, rolls, merges,
deletion, and a reader of the bucket (rules C to G).

One partition and three incarnations (`handover` has several partitions). Any of them may stall
between two steps and wake up much later. The WAL's own fencing is modelled in `fencing`, so here an
append to a WAL succeeds or meets the seal. The metadata log is a sequence of atomic, validated
appends. A process that reads several objects takes a step for each, so that any other step may come
between.

In every state: an offset is given out once, an opener rebuilds the whole log, the table holds a
prefix of the log, a reader of the bucket sees a prefix that is no older than its start, and from
the bucket alone the whole log can be recovered.

A hand-over names an object with the image, or (`Limits.by_reference`) the slot of the giver's WAL
at which the receiver's tenure continues the giver's. The receiver gets the image by a message, or
rebuilds it by C5 from the giver's tenure. Hand-over by reference holds under these conditions, each
of which is a variant in `REFERENCE_VARIANTS`:

1. The giver's checkpoints list the frozen image until no tenure names that leader epoch. The key is
   (partition, leader epoch): the partition may return before a later tenure is opened.
2. `Moved` names slot and next offset. A receiver takes a message only if leader epoch, slot and
   offset are those of the move: the message may be of an earlier attempt.
3. From the stop on, the giver appends nothing of that tenure: no record and no merge. A merge that
   ends later would relocate the frozen image, and slots would be deleted that the receiver's image
   refers to.
4. The metadata log keeps the giver's tenure until the receiver's is `Opened`. So by F1 the giver's
   WAL stays, even when the giver is retired.
5. An opener or reader that finds no base reads the metadata log again before it reports damage: a
   later tenure may have been opened, and the frozen image deleted.

    python -m tests.models.ownership [STATES]      the protocol, breadth first
    python -m tests.models.ownership --reference   the same with hand-over by reference
    python -m tests.models.ownership --walks       long random runs with wider limits
    python -m tests.models.ownership --variants    each broken variant is caught
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from tests.models.explorer import Model, Outcome, Violation, catch_all
from tests.models.ownership_bucket import collector_steps, reader_steps
from tests.models.ownership_world import (
    BROKERS,
    REFERENCE_VARIANTS,
    VARIANTS,
    WIDE,
    Checkpoint,
    Entry,
    Extent,
    Frozen,
    Image,
    Limits,
    Local,
    Missing,
    Reference,
    Search,
    Tenure,
    World,
    beginning,
    check,
    look_into,
    newest,
    put,
    relocated,
    replay,
    value_at,
)

Steps: TypeAlias = Iterator[tuple[str, World]]

# Steps of brokers.


class Actor(NamedTuple):
    """A broker that may take a step."""

    world: World
    limits: Limits
    variant: str
    number: int

    @property
    def me(self) -> Local:
        return self.world.brokers[self.number]

    @property
    def meets_seal(self) -> bool:
        return self.number in self.world.sealed and self.variant != "no seal"

    def to(self, name: str, local: Local, world: World | None = None) -> tuple[str, World]:
        """The world after a step of this broker."""
        after = world or self.world
        brokers = put(after.brokers, self.number, local)
        return f"{name} by {self.number}", after._replace(brokers=brokers)

    def write(self, entry: Entry) -> World:
        """The world with one more slot in this broker's WAL."""
        world = self.world
        slots = (*world.wals[self.number], entry)
        return world._replace(wals=put(world.wals, self.number, slots))


def append_steps(actor: Actor) -> Steps:
    """Open a tenure; append a record. A broker that meets its seal ends itself."""
    world, me, variant = actor.world, actor.me, actor.variant
    accepts = (
        me.phase == "owner"
        or (me.phase == "loaded" and variant == "accepts without an opening image")
        or (me.phase == "giving" and variant == "accepts while giving away")
    )
    if accepts and world.used.appends < actor.limits.appends:
        if actor.meets_seal:
            yield actor.to("append meets the seal", Local("dead"))
        else:
            offset = me.image.next
            if offset != len(world.truth):
                raise Violation(
                    f"broker {actor.number} gives out offset {offset}, the log has"
                    f" {len(world.truth)}"
                )
            value = offset * 10 + actor.number
            extent = Extent(offset, actor.number, len(world.wals[actor.number]))
            image = me.image._replace(next=offset + 1, extents=(*me.image.extents, extent))
            after = actor.write(Entry(me.epoch, None, offset, value))._replace(
                truth=(*world.truth, value),
                used=world.used._replace(appends=world.used.appends + 1),
            )
            yield actor.to("append", me._replace(image=image), after)
    owner = world.tenures[-1]
    opened = ("loaded", "owner") if variant == "Opened before the opening image" else ("owner",)
    is_current = (owner.broker, owner.epoch) == (actor.number, me.epoch)
    if (
        me.phase in opened
        and is_current
        and actor.number not in world.fenced
        and (len(world.tenures) > 1 or owner.handover is not None)
        and world.used.openings < actor.limits.openings
    ):
        used = world.used._replace(openings=world.used.openings + 1)
        alone = (owner._replace(handover=None),)
        yield actor.to("Opened", me, world._replace(tenures=alone, used=used))
    if me.phase == "loaded":
        if actor.meets_seal:
            yield actor.to("opening meets the seal", Local("dead"))
        else:
            after = actor.write(Entry(me.epoch, me.image))
            yield actor.to("opening image", me._replace(phase="owner"), after)


def checkpoint_steps(actor: Actor) -> Steps:
    """Write a checkpoint at the durable end. It has the partitions that the broker leads, opened or
    not, even while it gives them away. It also has partitions given by reference, as long as a
    tenure may refer to them."""
    world, me, number = actor.world, actor.me, actor.number
    if world.written[number] == actor.limits.checkpoints or me.phase == "dead":
        return
    if me.phase == "opening" and not me.frozen:
        return
    named = {tenure.epoch for tenure in world.tenures}
    frozen = tuple(each for each in me.frozen if each.epoch in named)
    if actor.variant == "checkpoints forget partitions given by reference" or (
        actor.variant == "a frozen image goes when the partition comes back" and me.epoch >= 0
    ):
        frozen = ()
    left_out = me.phase == "giving" and actor.variant == (
        "checkpoint leaves out partitions being given away"
    )
    slot = len(world.wals[number])
    if me.phase in ("idle", "opening") or left_out:
        checkpoint = Checkpoint(slot, -1, Image(), frozen)
    else:
        checkpoint = Checkpoint(slot, me.epoch, me.image, frozen)
    known = world.checkpoints[number]
    # A slot's checkpoint is written again only with the same state of the table or a newer one.
    if all(c.slot < slot for c in known):
        after = world._replace(
            checkpoints=put(world.checkpoints, number, known | {checkpoint}),
            written=put(world.written, number, world.written[number] + 1),
        )
        yield actor.to("checkpoint", me, after)


def roll_steps(actor: Actor) -> Steps:
    """Write a segment. Commit it if the table ends where the segment begins, otherwise rebase
    it."""
    world, me = actor.world, actor.me
    leads = me.phase in ("owner", "giving") and world.used.rolls < actor.limits.rolls
    if leads and me.roll is None and me.table_next < me.image.next:
        used = world.used._replace(rolls=world.used.rolls + 1)
        segment = me._replace(roll=(me.table_next, me.image.next))
        yield actor.to("segment", segment, world._replace(used=used))
    if me.roll is not None:
        base, upto = me.roll
        if (
            len(world.table) == base
            or actor.variant == "table commit without the next-offset check"
        ):
            name, known = "table commit", upto
            after = world._replace(table=world.table + world.truth[base:upto])
        else:
            name, known, after = "table rebase", max(me.table_next, len(world.table)), world
        kept = tuple(extent for extent in me.image.extents if extent.offset >= known)
        image = Image(me.image.next, kept, known)
        yield actor.to(name, me._replace(roll=None, table_next=known, image=image), after)


def merge_steps(actor: Actor) -> Steps:
    """Copy data in slots into one merged object, and write the new place into the WAL."""
    world, me, number, variant = actor.world, actor.me, actor.number, actor.variant
    leads = me.phase == "owner" or (me.phase == "giving" and variant == "merges while giving away")
    if not leads:
        return
    if me.merge is None and world.used.merges < actor.limits.merges:
        moving = [extent for extent in me.image.extents if not extent.merged]
        try:
            held = tuple((extent.offset, value_at(world, extent)) for extent in moving)
        except Missing:
            return  # The table has the segment by now, so the broker reads the table again.
        if held:
            objects = world.merged[number]
            moved = tuple(Extent(e.offset, number, len(objects), True) for e in moving)
            after = world._replace(
                merged=put(world.merged, number, (*objects, held)),
                used=world.used._replace(merges=world.used.merges + 1),
            )
            yield actor.to("merged object", me._replace(merge=moved), after)
    if me.merge is not None:
        image = me.image._replace(extents=relocated(me.image.extents, me.merge))
        told = me._replace(image=image, merge=None)
        if variant == "merge without an entry in the WAL":
            yield actor.to("relocate", told)
        elif actor.meets_seal:
            yield actor.to("relocation meets the seal", Local("dead"))
        else:
            after = actor.write(Entry(me.epoch, moved=me.merge))
            yield actor.to("relocate", told, after)


def give_steps(actor: Actor) -> Steps:
    """Stop accepting, write the image, append the move, which is valid only for the live owner.

    The giver may learn that the move is applied, or go on for a while without knowing it. A move
    that was refused, as its receiver was fenced, leaves the partition with the giver.
    """
    world, me, number = actor.world, actor.me, actor.number
    owner = world.tenures[-1]
    if me.phase == "giving" and owner.epoch > me.epoch and number not in world.fenced:
        if actor.variant == "serves again after a lost reply":
            yield actor.to("serves again", me._replace(phase="owner", handover=None))
        yield actor.to("learns that the move is applied", given(actor))
        return
    if world.used.changes == actor.limits.changes:
        return
    if me.phase == "owner":
        merge = me.merge if actor.variant == "merges while giving away" else None
        giving = me._replace(phase="giving", merge=merge)
        if actor.limits.by_reference:
            reference = Reference(len(world.wals[number]), me.image.next)
            yield actor.to("stop accepting", giving._replace(handover=reference))
        else:
            after = world._replace(handovers=(*world.handovers, (number, me.image)))
            giving = giving._replace(handover=len(world.handovers))
            yield actor.to("stop accepting", giving, after)
    if me.phase != "giving":
        return
    valid = (
        owner.broker == number and owner.epoch == me.epoch and number not in world.fenced
    ) or actor.variant == "move not validated"
    if not valid:
        yield actor.to("move refused", Local("dead"))
        return
    if actor.limits.by_reference:
        assert isinstance(me.handover, Reference)
        yield actor.to("serves again", me._replace(phase="owner", handover=None))
        image = (me.epoch, me.handover, me.image)
        yield actor.to("sends the image", me, world._replace(sent=world.sent | {image}))
    for receiver in range(BROKERS):
        if receiver != number and receiver not in world.fenced:
            before = world.tenures
            if actor.variant == "the move forgets the giver's tenure":
                before = ()
            moved = Tenure(owner.epoch + 1, receiver, me.handover)
            after = world._replace(
                tenures=(*before, moved),
                used=world.used._replace(changes=world.used.changes + 1),
            )
            yield actor.to(f"move to {receiver}", given(actor), after)
            if world.used.lost_replies < actor.limits.lost_replies:
                used = after.used._replace(lost_replies=world.used.lost_replies + 1)
                unknown = after._replace(used=used)
                yield actor.to(f"move to {receiver} without a reply", me, unknown)


def given(actor: Actor) -> Local:
    """A giver that has dropped the partition."""
    me = actor.me
    if not actor.limits.by_reference:
        return Local()
    return Local(frozen=(*me.frozen, Frozen(me.epoch, me.image)))


def open_steps(actor: Actor) -> Steps:
    """Take up the partition: look for the base, tenure by tenure, then replay."""
    world, me, number = actor.world, actor.me, actor.number
    owner = world.tenures[-1]
    if me.phase == "idle" and owner.broker == number and number not in world.fenced:
        # A broker knows that its own WAL has no opening of this tenure.
        search = Search(world.tenures, world.retired, len(world.tenures) - 1, None)
        frozen = me.frozen
        yield actor.to("begin to open", Local("opening", owner.epoch, search=search, frozen=frozen))
        for epoch, reference, image in world.sent:
            is_named = epoch == owner.epoch - 1 and reference == owner.handover
            if is_named or actor.variant == "an image of an earlier attempt is taken":
                table = len(world.table)
                received = Local("loaded", owner.epoch, image, table_next=table, frozen=frozen)
                yield actor.to("receives the image", received)
    if me.phase != "opening" or me.search is None:
        return
    search = me.search
    if not search.looked:
        broker = search.tenures[search.number].broker
        looked = search._replace(checkpoint=newest(world, broker), looked=True)
        yield actor.to("look for a checkpoint", me._replace(search=looked))
        return
    current = owner.epoch == me.epoch and number not in world.sealed
    try:
        outcome = look_into(world, search, actor.variant)
        if isinstance(outcome, Search):
            yield actor.to("look into the tenure before", me._replace(search=outcome))
            return
        image = replay(world, search, outcome, len(world.table), actor.variant)
        if search.reference is not None and search.reference.next != image.next:
            raise Violation(f"the base ends at {image.next}, the move says {search.reference}")
    except Missing as missing:
        broker = search.tenures[search.number].broker
        if newest(world, broker) != search.checkpoint:
            yield actor.to("look again", me._replace(search=search._replace(looked=False)))
        elif current:
            raise Violation(f"an opener misses {missing}, and no newer base is there") from None
        else:
            yield actor.to("superseded", Local("dead"))
        return
    if current and image.next != len(world.truth):
        raise Violation(
            f"opener {number} rebuilds up to {image.next}, the log has {len(world.truth)}"
        )
    table = len(world.table)
    loaded = Local("loaded", me.epoch, image, table_next=table, frozen=me.frozen)
    yield actor.to("replay", loaded)


def fence_steps(actor: Actor) -> Steps:
    """Fence, seal, retire: an entry is valid only if its author is not fenced."""
    world, me, number = actor.world, actor.me, actor.number
    if me.phase not in ("idle", "owner"):
        return
    alive = number not in world.fenced or actor.variant == "fenced brokers act"
    owner = world.tenures[-1]
    for victim in range(BROKERS):
        if victim == number:
            continue
        if victim not in world.fenced and alive and owner.broker == victim:
            yield actor.to(f"fence {victim}", me, world._replace(fenced=world.fenced | {victim}))
        if victim in world.fenced and victim not in world.sealed:
            yield actor.to(f"seal {victim}", me, world._replace(sealed=world.sealed | {victim}))
        sealed = victim in world.sealed or actor.variant == "reassigns before the seal"
        may_retire = victim in world.fenced and sealed and victim not in world.retired and alive
        if may_retire and world.used.changes < actor.limits.changes:
            after = world._replace(
                retired=world.retired | {victim},
                used=world.used._replace(changes=world.used.changes + 1),
            )
            if owner.broker == victim:
                taken = Tenure(owner.epoch + 1, number, None)
                after = after._replace(tenures=(*world.tenures, taken))
            yield actor.to(f"retire {victim}", me, after)


def model(limits: Limits, variant: str = "") -> Model[World]:
    """The protocol, or one of its broken variants."""

    def steps(world: World) -> Steps:
        for number in range(BROKERS):
            if world.brokers[number].phase == "dead":
                continue
            actor = Actor(world, limits, variant, number)
            yield from append_steps(actor)
            yield from checkpoint_steps(actor)
            yield from roll_steps(actor)
            yield from merge_steps(actor)
            yield from give_steps(actor)
            yield from open_steps(actor)
            yield from fence_steps(actor)
        yield from collector_steps(world, variant)
        yield from reader_steps(world, limits, variant)

    return Model(beginning(), steps, lambda world: check(world, variant))


def catch(variant: str) -> Outcome:
    """Look for a broken variant's violation."""
    return model(VARIANTS[variant], variant).explore(1_000_000)


def catch_reference(variant: str) -> Outcome:
    """Look for a violation of a broken variant with hand-over by reference."""
    return model(REFERENCE_VARIANTS[variant], variant).explore(1_000_000)


def main(arguments: list[str]) -> int:
    numbers = [int(argument) for argument in arguments if argument.isdigit()]
    if "--variants" in arguments:
        return catch_all(VARIANTS, catch) + catch_all(REFERENCE_VARIANTS, catch_reference)
    by_reference = "--reference" in arguments
    if "--walks" in arguments:
        wide = model(WIDE._replace(by_reference=by_reference))
        outcome = wide.walk(numbers[0] if numbers else 5_000, length=150, seed=1)
    else:
        narrow = model(Limits(by_reference=by_reference))
        outcome = narrow.explore(numbers[0] if numbers else 5_000_000)
    print(outcome)
    return int(outcome.violation is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
