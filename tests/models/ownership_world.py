"""The ownership model's world: metadata log, bucket and memories, the reads, and the invariants."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from tests.models.explorer import Violation

BROKERS = 3


class Limits(NamedTuple):
    """The limits of the world."""

    appends: int = 2
    changes: int = 2
    """Changes of ownership."""
    rolls: int = 2
    checkpoints: int = 1
    """A broker."""
    reads: int = 1
    merges: int = 1
    openings: int = 0
    """Entries `Opened`, by which the metadata log forgets earlier tenures."""
    lost_replies: int = 0
    """Moves that are applied while the giver does not learn it yet."""
    by_reference: bool = False
    """Whether a move names the giver's slot in place of a hand-over object."""


WIDE = Limits(
    appends=6,
    changes=6,
    rolls=5,
    checkpoints=4,
    reads=3,
    merges=4,
    openings=4,
    lost_replies=3,
)

VARIANTS = {
    "no seal": Limits(1, 1, 0, 0, 0, 0),
    "reassigns before the seal": Limits(1, 1, 0, 0, 0, 0),
    "fenced brokers act": Limits(0, 2, 0, 0, 0, 0),
    "move not validated": Limits(1, 2, 0, 0, 0, 0),
    "accepts without an opening image": Limits(1, 0, 0, 0, 0, 0),
    "accepts while giving away": Limits(1, 1, 0, 0, 0, 0),
    "checkpoint of another tenure taken": Limits(1, 2, 0, 1, 0, 0),
    "checkpoint leaves out partitions being given away": Limits(1, 1, 0, 1, 0, 0),
    "table commit without the next-offset check": Limits(1, 2, 2, 0, 0, 0),
    "deletes above the floor": Limits(2, 1, 1, 0, 0, 0),
    "deletes objects that a base refers to": Limits(1, 1, 0, 1, 0, 0),
    "deletes the newest checkpoint": Limits(1, 1, 1, 1, 0, 0),
    "retired WALs deleted too early": Limits(0, 3, 0, 0, 0, 0),
    "reader takes a table older than the base": Limits(1, 1, 1, 1, 1, 0),
    "reader does not look at the metadata again": Limits(1, 2, 0, 1, 1, 0),
    "reader takes a deleted slot for the end": Limits(2, 0, 1, 1, 1, 0),
    "merge without an entry in the WAL": Limits(1, 1, 0, 1, 0, 1),
    "merges while giving away": Limits(1, 1, 0, 1, 0, 1),
    "merged objects go that a WAL names above its floor": Limits(1, 0, 0, 0, 0, 1),
    "merged objects go that are not named yet": Limits(1, 0, 0, 0, 0, 1),
    "hand-over objects go before Opened": Limits(0, 1, 0, 0, 0, 0),
    "Opened before the opening image": Limits(1, 1, 0, 0, 0, 0, openings=1),
    "serves again after a lost reply": Limits(1, 1, 0, 0, 0, 0, lost_replies=1),
}
"""Broken variants, each with the smallest world in which it fails."""

_REFERENCE = Limits(1, 1, 0, 1, 0, 0, by_reference=True)
REFERENCE_VARIANTS = {
    "checkpoints forget partitions given by reference": _REFERENCE,
    "a frozen image goes when the partition comes back": _REFERENCE._replace(changes=2),
    "an image of an earlier attempt is taken": _REFERENCE._replace(checkpoints=0),
    "the move forgets the giver's tenure": _REFERENCE,
    "accepts while giving away": _REFERENCE._replace(checkpoints=0),
    "merges while giving away": _REFERENCE._replace(merges=1),
    "deletes the newest checkpoint": _REFERENCE._replace(rolls=1),
}
"""Broken variants of hand-over by reference."""


class Extent(NamedTuple):
    """The place of a record: a slot of a WAL, or the merged object with that number."""

    offset: int
    broker: int
    slot: int
    merged: bool = False


class Image(NamedTuple):
    """A partition's state. It has nothing about offsets below `table_next`."""

    next: int = 0
    extents: tuple[Extent, ...] = ()
    table_next: int = 0


class Reference(NamedTuple):
    """A tenure continues the one before it, whose entries end below `slot` at offset `next`."""

    slot: int
    next: int


class Tenure(NamedTuple):
    """A tenure in the metadata log; `handover` is an object's number, or None after a fence."""

    epoch: int
    broker: int
    handover: int | Reference | None


class Frozen(NamedTuple):
    """The image of a tenure that was given by reference."""

    epoch: int
    image: Image


class Entry(NamedTuple):
    """A slot: the image that opens a tenure, a record, or the new place of records."""

    epoch: int
    image: Image | None = None
    offset: int = -1
    value: int = -1
    moved: tuple[Extent, ...] = ()


class Merged(NamedTuple):
    """A merged object, as a collector marks it."""

    number: int


class Handover(NamedTuple):
    """A hand-over object, as a collector marks it."""

    number: int


class Checkpoint(NamedTuple):
    """The checkpoint of slot `slot`. `epoch` is -1 if the broker did not lead the partition."""

    slot: int
    epoch: int
    image: Image
    frozen: tuple[Frozen, ...] = ()


class Base(NamedTuple):
    """Where a log begins: an image, and the WAL and slot to replay from (none for a hand-over)."""

    tenure: Tenure
    image: Image
    slot: int | None


class Search(NamedTuple):
    """A search for the log's state: the tenure that it looks into, and the checkpoint of that
    WAL."""

    tenures: tuple[Tenure, ...]
    ended: frozenset[int]
    """The brokers whose WALs have ended, as far as this one knows."""
    number: int
    checkpoint: Checkpoint | None
    looked: bool = False
    """Whether `checkpoint` has been read for this tenure."""
    reference: Reference | None = None
    """The end of this tenure, if the later tenure refers to it."""


class Local(NamedTuple):
    """A broker's memory. phase: idle, opening, loaded, owner, giving, dead."""

    phase: str = "idle"
    epoch: int = -1
    image: Image = Image()
    search: Search | None = None
    handover: int | Reference | None = None
    """While giving away: the object that was written when it stopped accepting, or its slot."""
    roll: tuple[int, int] | None = None
    table_next: int = 0
    merge: tuple[Extent, ...] | None = None
    """The copy in a merged object whose entry the WAL does not have yet."""
    frozen: tuple[Frozen, ...] = ()
    """Tenures given by reference. The giver's checkpoints list them until a later tenure is
    opened."""


class Reader(NamedTuple):
    """A reader of the bucket: the table that it has read, and how long the log was at that time."""

    table: tuple[int, ...]
    least: int
    search: Search | None = None


class Used(NamedTuple):
    """The used part of the limits."""

    appends: int = 0
    changes: int = 0
    rolls: int = 0
    reads: int = 0
    merges: int = 0
    openings: int = 0
    lost_replies: int = 0


class World(NamedTuple):
    """Metadata log, bucket, memories, and ghost variables with the true values."""

    tenures: tuple[Tenure, ...]
    fenced: frozenset[int]
    retired: frozenset[int]
    sealed: frozenset[int]
    wals: tuple[tuple[Entry | None, ...], ...]
    """None for a slot whose object was deleted."""
    checkpoints: tuple[frozenset[Checkpoint], ...]
    table: tuple[int, ...]
    """Values; the offset is the index."""
    truth: tuple[int, ...]
    """Every value that was durably appended."""
    brokers: tuple[Local, ...]
    used: Used
    written: tuple[int, ...]
    """Checkpoints of each broker."""
    marked: frozenset[tuple[int, int | Checkpoint | Merged | Handover]]
    """The objects that a collector has found superfluous, and may delete at any later time."""
    reader: Reader | None
    merged: tuple[tuple[tuple[tuple[int, int], ...] | None, ...], ...]
    """Each broker's merged objects: offsets and values. None: the object was deleted."""
    handovers: tuple[tuple[int, Image] | None, ...] = ()
    """Hand-over objects: the giver and the image. None: the object was deleted."""
    sent: frozenset[tuple[int, Reference, Image]] = frozenset()
    """Images on their way to a receiver, for ever; with the leader epoch of the giver."""


T = TypeVar("T")


class Missing(Exception):
    """An object that was to be read is missing."""


def beginning() -> World:
    """Broker 0 owns the empty partition."""
    none: frozenset[int] = frozenset()
    return World(
        tenures=(Tenure(0, 0, None),),
        fenced=none,
        retired=none,
        sealed=none,
        wals=((),) * BROKERS,
        checkpoints=(frozenset(),) * BROKERS,
        table=(),
        truth=(),
        brokers=(Local(),) * BROKERS,
        used=Used(),
        written=(0,) * BROKERS,
        marked=frozenset(),
        reader=None,
        merged=((),) * BROKERS,
    )


def put(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])


def relocated(extents: tuple[Extent, ...], moved: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """The extents, with the moved ones in their new places."""
    places = {extent.offset: extent for extent in moved}
    return tuple(places.get(extent.offset, extent) for extent in extents)


def newest(world: World, broker: int) -> Checkpoint | None:
    """A broker's newest checkpoint."""
    return max(world.checkpoints[broker], key=lambda c: c.slot, default=None)


def floor(world: World, broker: int) -> int:
    """The slot at which readers of a broker's WAL begin."""
    checkpoint = newest(world, broker)
    return 0 if checkpoint is None else checkpoint.slot


# Reading: the steps of recovery.


def readable(world: World, search: Search, start: int, variant: str) -> tuple[Entry | None, ...]:
    """A WAL's slots from `start` on.

    For its reader, a living WAL ends at the first missing slot, unless a checkpoint says that the
    slot was deleted. In a WAL that has ended, a missing slot is damage.
    """
    broker = search.tenures[search.number].broker
    if search.reference is not None:
        # All slots below the end that the move names were durable.
        return world.wals[broker][start : search.reference.slot]
    slots = world.wals[broker][start:]
    if broker in search.ended or None not in slots:
        return slots
    end = slots.index(None)
    careless = variant == "reader takes a deleted slot for the end"
    if floor(world, broker) > start + end and not careless:
        raise Missing(f"slot {start + end} of {broker}")
    return slots[:end]


def look_into(world: World, search: Search, variant: str) -> Base | Search:
    """The base, if this tenure has it; otherwise the next tenure to search."""
    tenure = search.tenures[search.number]
    checkpoint = search.checkpoint
    if checkpoint is not None and checkpoint not in world.checkpoints[tenure.broker]:
        raise Missing(f"a checkpoint of {tenure.broker}")
    start = 0 if checkpoint is None else checkpoint.slot
    if checkpoint is not None:
        other = variant == "checkpoint of another tenure taken" and checkpoint.epoch != -1
        if checkpoint.epoch == tenure.epoch or other:
            return Base(tenure, checkpoint.image, start)
        for epoch, image in checkpoint.frozen:
            if epoch == tenure.epoch:
                return Base(tenure, image, start)
    slots = readable(world, search, start, variant)
    for number, entry in enumerate(slots, start):
        if entry is not None and entry.image is not None and entry.epoch == tenure.epoch:
            return Base(tenure, entry.image, number)
    if None in slots:
        # The broker may have opened in that slot.
        raise Missing(f"a slot of {tenure.broker}")
    reference = None
    if isinstance(tenure.handover, Reference):
        reference = tenure.handover
    elif tenure.handover is not None:
        handed = world.handovers[tenure.handover]
        if handed is None:
            raise Missing(f"hand-over object {tenure.handover}")
        return Base(tenure, handed[1], None)
    if search.number > 0:
        earlier = search.number - 1
        return Search(search.tenures, search.ended, earlier, None, reference=reference)
    if tenure.epoch > 0:
        # The view is behind: the base was deleted when a later tenure was opened.
        raise Missing(f"the base of {tenure}, the first that the log knows,")
    return Base(tenure, Image(), None)


def replay(world: World, search: Search, base: Base, table_next: int, variant: str) -> Image:
    """The state at the WAL's end."""
    image = base.image
    following, extents = image.next, list(image.extents)
    if base.slot is not None:
        slots = readable(world, search, base.slot, variant)
        for number, entry in enumerate(slots, base.slot):
            if entry is None:
                raise Missing(f"slot {number} of {base.tenure.broker}")
            if entry.epoch != base.tenure.epoch:
                continue
            if entry.moved:
                extents = list(relocated(tuple(extents), entry.moved))
                continue
            offset = entry.offset if entry.image is None else entry.image.next
            if offset != following:
                raise Violation(f"replay met offset {offset}, expected {following}")
            if entry.image is None:
                extents.append(Extent(following, base.tenure.broker, number))
                following += 1
    kept = tuple(extent for extent in extents if extent.offset >= table_next)
    return Image(following, kept, max(image.table_next, table_next))


def values_of(world: World, table: tuple[int, ...], image: Image) -> tuple[int, ...]:
    """The log by a version of the table and the image's extents."""
    values = list(table)
    for extent in image.extents:
        if extent.offset < len(table):
            continue
        if extent.offset != len(values):
            raise Violation(f"a hole before offset {extent.offset}")
        values.append(value_at(world, extent))
    return tuple(values)


def value_at(world: World, extent: Extent) -> int:
    """The value in an extent's place."""
    if extent.merged:
        held = world.merged[extent.broker][extent.slot]
        if held is None:
            raise Missing(f"merged object {extent.slot} of {extent.broker}")
        return dict(held)[extent.offset]
    entry = world.wals[extent.broker][extent.slot]
    if entry is None:
        raise Missing(f"slot {extent.slot} of {extent.broker}")
    return entry.value


def found_at_once(world: World, variant: str) -> tuple[Base, Search]:
    """The base of the newest tenure, found while no other step happens."""
    everybody = frozenset(range(BROKERS))
    last = len(world.tenures) - 1
    search = Search(world.tenures, everybody, last, None)
    while True:
        broker = search.tenures[search.number].broker
        search = search._replace(checkpoint=newest(world, broker), looked=True)
        outcome = look_into(world, search, variant)
        if isinstance(outcome, Base):
            return outcome, search
        search = outcome


def check(world: World, variant: str) -> None:
    """Check the rules that hold in every state."""
    if world.table != world.truth[: len(world.table)]:
        raise Violation(f"the table {world.table} is no prefix of the log {world.truth}")
    try:
        base, search = found_at_once(world, variant)
        image = replay(world, search, base, len(world.table), variant)
        recovered = values_of(world, world.table, image)
    except Missing as missing:
        raise Violation(f"the log cannot be recovered: {missing} is gone") from None
    if recovered != world.truth:
        raise Violation(f"recovered {recovered}, the log is {world.truth}")
