"""Cuts long requests into parts and joins the parts' answers. Pure.

Only requests with independent entries can be cut: each entry has an answer of its own, and serving
it with fewer others changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from tidelog.protocol.api import ApiKey, OwnApiKey
from tidelog.protocol.message import Request, Response

Path: TypeAlias = tuple[str, ...]
"""Fields that lead from a message to its entries.

Each is an array, and all except the last are of structures: ("topics", "partitions").
"""


_Entry: TypeAlias = tuple[Any, ...]
"""An entry, after the structures that contain it."""


@dataclass(frozen=True, slots=True)
class Division:
    """The way to cut one API's requests."""

    entries: Path
    answers: Path
    part_entries: int
    """Entries of one part, which takes a millisecond or two."""


_PARTITIONS: Final[Path] = ("topics", "partitions")

DIVISIONS: Final[Mapping[int, Division]] = MappingProxyType(
    {
        ApiKey.PRODUCE: Division(
            ("topic_data", "partition_data"), ("responses", "partition_responses"), 128
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: Division(_PARTITIONS, _PARTITIONS, 256),
        ApiKey.DELETE_RECORDS: Division(_PARTITIONS, _PARTITIONS, 64),
        ApiKey.OFFSET_COMMIT: Division(_PARTITIONS, _PARTITIONS, 128),
        ApiKey.TXN_OFFSET_COMMIT: Division(_PARTITIONS, _PARTITIONS, 128),
        ApiKey.OFFSET_DELETE: Division(_PARTITIONS, _PARTITIONS, 128),
        ApiKey.FIND_COORDINATOR: Division(("coordinator_keys",), ("coordinators",), 256),
        ApiKey.DESCRIBE_GROUPS: Division(("groups",), ("groups",), 4),
        ApiKey.DELETE_GROUPS: Division(("groups_names",), ("results",), 64),
        ApiKey.LEAVE_GROUP: Division(("members",), ("members",), 256),
        ApiKey.CONSUMER_GROUP_DESCRIBE: Division(("group_ids",), ("groups",), 4),
        ApiKey.WRITE_TXN_MARKERS: Division(
            ("markers", "topics", "partition_indexes"), ("markers", "topics", "partitions"), 128
        ),
        ApiKey.DESCRIBE_PRODUCERS: Division(("topics", "partition_indexes"), _PARTITIONS, 64),
        ApiKey.DESCRIBE_TRANSACTIONS: Division(("transactional_ids",), ("transaction_states",), 8),
        ApiKey.ELECT_LEADERS: Division(
            ("topic_partitions", "partitions"),
            ("replica_election_results", "partition_result"),
            128,
        ),
        OwnApiKey.ADOPT: Division(_PARTITIONS, _PARTITIONS, 64),
    }
)


def is_long(division: Division, request: Request[Response]) -> bool:
    """Whether the request has to be cut."""
    nodes: Sequence[Any] = (request,)
    for name in division.entries:
        if len(nodes) == 1:
            nodes = getattr(nodes[0], name) or ()
        else:
            nodes = [entry for node in nodes for entry in getattr(node, name) or ()]
    return len(nodes) > division.part_entries


class Part(NamedTuple):
    """A part of a request, which is a complete request."""

    request: Request[Response]
    continues: int
    """The number of structures that the part before has begun, around this part's first entry."""


def cut(division: Division, request: Request[Response]) -> Iterator[Part]:
    """The parts, in order."""
    part: list[_Entry] = []
    continues = 0
    for entry in _entries(request, division.entries):
        if len(part) == division.part_entries:
            yield Part(_with(request, division.entries, part), continues)
            continues = _shared(part[-1], entry)
            part = []
        part.append(entry)
    if part:
        yield Part(_with(request, division.entries, part), continues)


def _shared(one: _Entry, other: _Entry) -> int:
    """The number of structures that contain both entries."""
    count = 0
    for ours, theirs in zip(one[:-1], other[:-1], strict=True):
        if ours is not theirs:
            break
        count += 1
    return count


def _entries(node: Any, path: Path) -> Iterator[_Entry]:
    """The entries, in order."""
    for each in getattr(node, path[0]) or ():
        if len(path) == 1:
            yield (each,)
        else:
            for inner in _entries(each, path[1:]):
                yield (each, *inner)


def _with(node: Any, path: Path, entries: Sequence[_Entry]) -> Any:
    """A copy with only these entries."""
    found = copy(node)
    if len(path) == 1:
        setattr(found, path[0], [entry[0] for entry in entries])
        return found
    inner: list[Any] = []
    begin = 0
    for position in range(1, len(entries) + 1):
        if position < len(entries) and entries[position][0] is entries[begin][0]:
            continue
        group = [entry[1:] for entry in entries[begin:position]]
        inner.append(_with(entries[begin][0], path[1:], group))
        begin = position
    setattr(found, path[0], inner)
    return found


def join(
    division: Division, parts: Sequence[Part], answers: Sequence[Response | None]
) -> Response | None:
    """The answer to the whole request; the first part's answer with a top-level error, if any.

    Two structures become one only where the request's structure was cut: a request may name the
    same thing twice, and its sender counts the answers.
    """
    known = [pair for pair in zip(parts, answers, strict=True) if pair[1] is not None]
    for _, answer in known:
        if getattr(answer, "error_code", 0):
            return answer
    if not known:
        return None
    (_, joined), *rest = known
    for part, answer in rest:
        _append(joined, answer, division.answers, part.continues)
    return joined


def _append(node: Any, other: Any, path: Path, continues: int) -> None:
    entries, more = getattr(node, path[0]), getattr(other, path[0])
    if continues and entries and more and _is_same(entries[-1], more[0], path[1]):
        _append(entries[-1], more[0], path[1:], continues - 1)
        more = more[1:]
    entries.extend(more)


def _is_same(one: Any, other: Any, inner: str) -> bool:
    """Whether both are parts of the same cut structure."""
    return all(
        getattr(one, field.name) == getattr(other, field.name)
        for field in one.FIELDS
        if field.name != inner
    )
