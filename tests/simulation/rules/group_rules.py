"""Rules on consumer groups: the owners of partitions, the commits that count, and no skipped
records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.simulation.rules.anomaly import Anomaly
from tests.simulation.rules.history import GroupProtocol, History, Key, Operation, Outcome


def anomalies(history: History) -> Iterator[Anomaly]:
    """The violations of the rules."""
    operations = history.operations
    yield from _owners(operations)
    yield from _generations(operations)
    yield from _stale_commits(operations)
    yield from _holders(operations)
    yield from _member_epochs(operations)
    yield from _committed_offsets(operations)
    yield from _passed_over(operations)


def _owners(operations: list[Operation]) -> Iterator[Anomaly]:
    """A partition has one owner in a generation, and the generation has one leader (12)."""
    owners: dict[tuple[str, int, Key], Operation] = {}
    leaders: dict[tuple[str, int], Operation] = {}
    for operation in operations:
        claim = operation.claim
        if claim is None or claim.protocol != "classic" or operation.outcome is not Outcome.OK:
            continue
        if claim.leader:
            other = leaders.setdefault((claim.group, claim.generation), operation)
            if other.claim is not None and other.claim.member != claim.member:
                text = f"{other} and {operation} both lead generation {claim.generation}"
                yield Anomaly("two-leaders", text)
        for key in claim.keys:
            other = owners.setdefault((claim.group, claim.generation, key), operation)
            if other.claim is not None and other.claim.member != claim.member:
                text = f"{other} and {operation} both own {key} in {claim.generation}"
                yield Anomaly("two-owners", text)


def _generations(operations: list[Operation]) -> Iterator[Anomaly]:
    """A group's generations only grow: a member that joins later does not get an earlier one."""
    newest: dict[str, tuple[int, Operation]] = {}
    for _, began, operation in _claims(operations, "classic"):
        claim = operation.claim
        assert claim is not None
        known = newest.get(claim.group)
        if not began:
            if known is None or claim.generation > known[0]:
                newest[claim.group] = (claim.generation, operation)
        elif known is not None and claim.generation < known[0]:
            text = f"{operation} joined generation {claim.generation} of {claim.group}"
            yield Anomaly("generation-back", f"{text}, after {known[1]} joined {known[0]}")


def _claims(
    operations: list[Operation], protocol: GroupProtocol
) -> list[tuple[int, int, Operation]]:
    """Events of claims: the time, and 1 for a request or 0 for an answer."""
    events = []
    for operation in operations:
        claim = operation.claim
        if claim is not None and claim.protocol == protocol and operation.completed is not None:
            events.append((operation.invoked, 1, operation))
            events.append((operation.completed, 0, operation))
    return sorted(events, key=lambda event: event[:2])


def _member_epochs(operations: list[Operation]) -> Iterator[Anomaly]:
    """The epoch of a member only grows, for as long as it stays."""
    newest: dict[tuple[str, str], tuple[int, Operation]] = {}
    for _, began, operation in _claims(operations, "consumer"):
        claim = operation.claim
        assert claim is not None
        member = (claim.group, claim.member)
        known = newest.get(member)
        if not began:
            if known is None or claim.generation > known[0]:
                newest[member] = (claim.generation, operation)
        elif known is not None and claim.generation < known[0]:
            text = f"{operation} was told epoch {claim.generation} in {claim.group}"
            yield Anomaly("epoch-of-member-back", f"{text}, after {known[1]} was told {known[0]}")


def _holders(operations: list[Operation]) -> Iterator[Anomaly]:
    """Under the consumer protocol no member gets a partition that another still has (12). If two
    heartbeats or commits of a member show a partition, the member had it all the time in between,
    since an answer tells it before it gives a partition up."""
    given: dict[tuple[str, Key], list[Operation]] = defaultdict(list)
    for _, began, operation in _claims(operations, "consumer"):
        if began and operation.claim is not None:
            for key in operation.claim.keys:
                given[operation.claim.group, key].append(operation)
    held: dict[tuple[str, str], tuple[str, dict[Key, Operation]]] = {}
    """By group and process: the member, and the heartbeat that last reported each of its
    partitions."""
    for operation in sorted(operations, key=lambda one: one.completed or 0):
        if operation.outcome is not Outcome.OK:
            continue
        claim, offsets = operation.claim, operation.offsets
        if claim is not None and claim.protocol == "consumer":
            place = (claim.group, operation.process)
            member, before = held.get(place, (claim.member, {}))
            if member != claim.member:
                before = {}
            held[place] = (claim.member, dict.fromkeys(claim.keys, operation))
            confirmed = [key for key in claim.keys if key in before]
        elif operation.kind == "commit" and offsets is not None:
            place = (offsets.group, operation.process)
            if place not in held:
                continue
            _, before = held[place]
            confirmed = [key for key in offsets.offsets if key in before]
            held[place] = (held[place][0], before | dict.fromkeys(confirmed, operation))
        else:
            continue
        for key in confirmed:
            for other in _given_between(given[place[0], key], before[key], operation):
                text = f"{other} was given {key} of {place[0]}"
                yield Anomaly("given-twice", f"{text}: {before[key]} and {operation} had it")


def _given_between(
    given: list[Operation], earlier: Operation, later: Operation
) -> Iterator[Operation]:
    """The other members that got a partition after one operation and before another."""
    assert earlier.completed is not None
    for one in given:
        begins_after = one.invoked > earlier.completed
        if begins_after and (one.completed or 0) < later.invoked and one.process != later.process:
            yield one


def _stale_commits(operations: list[Operation]) -> Iterator[Anomaly]:
    """A commit is not accepted from a generation that was over before it was sent (12)."""
    newest: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for operation in operations:
        claim = operation.claim
        if claim is not None and claim.protocol == "classic" and operation.completed is not None:
            newest[claim.group].append((operation.completed, claim.generation))
    for operation in operations:
        offsets = operation.offsets
        if operation.kind != "commit" or operation.outcome is not Outcome.OK or offsets is None:
            continue
        for completed, generation in newest[offsets.group]:
            if completed < operation.invoked and generation > offsets.generation:
                text = f"{operation} of generation {offsets.generation} counts in {offsets.group}"
                yield Anomaly("stale-commit", f"{text}, where {generation} had begun")
                break


def _committed_offsets(operations: list[Operation]) -> Iterator[Anomaly]:
    """A committed offset that is found was committed by a member, and is no older than before.

    A commit without an answer may take effect late, but not once a later generation has
    committed or was told of the offsets.
    """
    committed: dict[tuple[str, Key], dict[int, list[Operation]]]
    committed = defaultdict(lambda: defaultdict(list))
    transactional: set[tuple[str, Key]] = set()
    for operation in operations:
        transactional.update((one.group, one.key) for one in operation.advances)
        if operation.kind == "commit" and operation.offsets is not None:
            for key, offset in operation.offsets.offsets.items():
                committed[operation.offsets.group, key][offset].append(operation)
    known: dict[tuple[str, Key], tuple[int, int, Operation]] = {}
    """The highest known offset, its generation, and the operation that knew it."""
    for _, asked, operation in _events(operations):
        offsets = operation.offsets
        assert offsets is not None
        for key, offset in offsets.offsets.items():
            place = (offsets.group, key)
            before = known.get(place)
            if not asked:
                if before is None or offset > before[0]:
                    known[place] = (offset, offsets.generation, operation)
                continue
            if operation.kind == "commit" or place in transactional:
                continue
            writers = committed[place].get(offset, [])
            if offset >= 0 and not any(_began_before(one, operation) for one in writers):
                text = f"{operation} found {offset} of {key} in {offsets.group}"
                yield Anomaly("phantom-offset", f"{text}: no client committed it")
            if before is not None and offset < before[0] and not _may_be_late(writers, before[1]):
                text = f"{operation} found {offset} of {key} in {offsets.group}"
                yield Anomaly("offset-back", f"{text}, after {before[2]} knew of {before[0]}")


def _events(operations: list[Operation]) -> list[tuple[int, int, Operation]]:
    """Events of offsets: the time, and 1 for a request or 0 for an answer."""
    events = []
    for operation in operations:
        if operation.offsets is not None and operation.outcome is Outcome.OK:
            assert operation.completed is not None
            events.append((operation.invoked, 1, operation))
            events.append((operation.completed, 0, operation))
    return sorted(events, key=lambda event: event[:2])


def _began_before(writer: Operation, reader: Operation) -> bool:
    return reader.completed is not None and writer.invoked < reader.completed


def _may_be_late(writers: list[Operation], generation: int) -> bool:
    return any(
        one.outcome is not Outcome.OK
        and one.offsets is not None
        and one.offsets.generation >= generation
        for one in writers
    )


def _passed_over(operations: list[Operation]) -> Iterator[Anomaly]:
    """A member that commits an offset, or another of its group, has read all visible records below
    (at least once)."""
    groups: dict[str, set[str]] = defaultdict(set)
    highest: dict[tuple[str, Key], tuple[int, Operation]] = {}
    for operation in operations:
        if operation.claim is not None:
            groups[operation.claim.group].add(operation.process)
        if operation.kind == "commit" and operation.outcome is Outcome.OK and operation.offsets:
            for key, offset in operation.offsets.offsets.items():
                place = (operation.offsets.group, key)
                if place not in highest or offset > highest[place][0]:
                    highest[place] = (offset, operation)
    if not highest:
        return
    everything: dict[Key, dict[int, str]] = defaultdict(dict)
    read: dict[tuple[str, Key], set[int]] = defaultdict(set)
    for operation in operations:
        if operation.outcome is not Outcome.OK:
            continue
        for poll in operation.polls:
            if operation.final and poll.isolation == "read_committed":
                everything[poll.key].update(poll.records)
            read[operation.process, poll.key].update(offset for offset, _ in poll.records)
    for (group, key), (end, operation) in highest.items():
        seen = set().union(*(read[process, key] for process in groups[group]))
        missing = [one for one in sorted(everything[key]) if one < end and one not in seen]
        if missing:
            text = f"{operation} committed {end} of {key} in {group}"
            yield Anomaly("passed-over", f"{text}: no member read {missing[:5]}")
