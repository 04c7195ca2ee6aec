"""One error for a whole request, in the shape that its answers have: the schemas tell the shape.

A structure that has an error code takes the code, and nothing below it is filled. Another one
repeats a list of the request: one element of the answer for each that was asked for, with what
identifies it. The tables name what the schemas do not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tidelog.protocol.api import response_type
from tidelog.protocol.error_codes import ErrorCode, error_name
from tidelog.protocol.fields import Field
from tidelog.protocol.made_list import MadeList
from tidelog.protocol.message import Message, Request, Response, Struct
from tidelog.protocol.schemas import (
    coordinators,
    fetch,
    group_offsets,
    groups,
    metadata,
    produce,
    replicas,
    topics,
    transactions,
)
from tidelog.protocol.wire import STEP_ELEMENTS

if TYPE_CHECKING:
    from tidelog.broker.telemetry.metrics import RequestMetrics

CODE_NAMES = frozenset({"error_code", "partition_error_code"})
"""How messages call the code of what was asked; AddPartitionsToTxn has the second name."""
_MESSAGE = "error_message"
_Elements: TypeAlias = "tuple[Callable[[Any], Sequence[Any] | None], type[Struct] | None]"
"""Gets the elements of a list from what was asked; their structure, None for plain values."""
_IDENTITIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "name": "name",
        "topic": "topic",
        "topic_name": "name",
        "topic_id": "topic_id",
        "index": "index",
        "partition": "partition",
        "partition_index": "partition",
        "partition_id": "partition",
        "group_id": "group_id",
        "key": "key",
        "resource_type": "resource_type",
        "resource_name": "resource_name",
        "transactional_id": "transactional_id",
        "producer_id": "producer_id",
    }
)
"""The fields that say what an element of an answer is about, each with the name that a request may
have for it instead. The element of a plain list is the first of them."""
_UNKNOWN: Final[Mapping[type[Struct], Mapping[str, int]]] = MappingProxyType(
    {
        coordinators.Coordinator: {"node_id": -1, "port": -1},
        coordinators.FindCoordinatorResponse: {"node_id": -1, "port": -1},
        fetch.FetchablePartitionResponse: {"high_watermark": -1},
        group_offsets.OffsetFetchResponsePartition: {"committed_offset": -1},
        produce.PartitionProduceResponse: {"base_offset": -1},
        topics.DeleteRecordsPartitionResult: {"low_watermark": -1},
        transactions.InitProducerIdResponse: {"producer_epoch": -1},
    }
)
"""What Kafka sends for a number that an error leaves open, where the schema's default is 0."""
_REPEATED: Final[Mapping[type[Struct], _Elements]] = MappingProxyType(
    {
        replicas.AlterReplicaLogDirsRequest: (
            lambda request: [topic for directory in request.dirs for topic in directory.topics],
            replicas.AlterReplicaLogDirTopic,
        ),
        replicas.DescribeLogDirsRequest: (
            lambda request: [request],
            replicas.DescribeLogDirsRequest,
        ),
    }
)
"""What the answer repeats where it has another shape than the request."""
_REPEATING: Final = frozenset({metadata.MetadataResponse, replicas.ElectLeadersResponse})
"""Answers that repeat the request also where they have a code of their own."""
_MEMBERS: Final[Mapping[type[Struct], str]] = MappingProxyType(
    {groups.JoinGroupResponse: "member_id"}
)
"""Answers that identify the client itself, and the field that does."""


def error_response(
    request: Request[Response], version: int, code: ErrorCode, message: str
) -> Response | None:
    """The answer that says `code` of everything that was asked; None if the request is not to be
    answered."""
    if isinstance(request, produce.ProduceRequest) and request.acks == 0:
        return None
    (response,) = _answer_shape(type(request), version).filled([request], code, message)
    assert isinstance(response, Response)
    return response


@dataclass(frozen=True, slots=True)
class _Shape:
    """How one structure of an answer is filled."""

    struct: type[Struct]
    unknown: Mapping[str, int]
    code_name: str | None
    has_message: bool
    identities: tuple[tuple[str, Callable[[Any], Any]], ...]
    """Its fields that come from what was asked, and what gets them from there."""
    repeated: tuple[str, Callable[[Any], Sequence[Any] | None], _Shape] | None
    """The list that has an element for each that was asked for, and the shape of one."""

    def filled(self, asked: Sequence[Any], code: ErrorCode, message: str) -> list[Struct]:
        """One structure about each of what was asked."""
        common: dict[str, object] = dict(self.unknown)
        if self.code_name is not None:
            common[self.code_name] = code
        if self.has_message:
            common[_MESSAGE] = message
        structs = []
        for each in asked:
            values = common.copy()
            for name, source in self.identities:
                values[name] = source(each)
            if self.repeated is not None:
                name, elements, shape = self.repeated
                values[name] = shape.filled(elements(each) or (), code, message)
            structs.append(self.struct(**values))
        return structs


@cache
def _answer_shape(request: type[Message], version: int) -> _Shape:
    return _shape(response_type(request.API_KEY), request, version)


def _shape(answer: type[Struct], asked: type[Struct] | None, version: int) -> _Shape:
    """How `answer` is filled about what was asked: a structure, or a plain value (None)."""
    fields = [field for field in answer.FIELDS if version in field.versions]
    code_name = next((field.name for field in fields if field.name in CODE_NAMES), None)
    repeated = None
    if code_name is None or answer in _REPEATING:
        assert asked is not None
        name, element = next(
            (field.name, element)
            for field in fields
            if (element := _element_struct(field)) is not None and any(_places(element))
        )
        elements, asked_element = _asked_elements(asked, version)
        repeated = (name, elements, _shape(element, asked_element, version))
    return _Shape(
        answer,
        _UNKNOWN.get(answer, {}),
        code_name,
        any(field.name == _MESSAGE for field in answer.FIELDS),
        tuple(_identities(answer, asked)),
        repeated,
    )


def _asked_elements(asked: type[Struct], version: int) -> _Elements:
    """The only list that a structure of a request has in this version, or what stands for it."""
    if asked in _REPEATED:
        return _REPEATED[asked]
    (field,) = (
        field
        for field in asked.FIELDS
        if field.type.element is not None and version in field.versions
    )
    return attrgetter(field.name), _element_struct(field)


def _element_struct(field: Field) -> type[Struct] | None:
    """The structure of a list's elements; None for plain values, and for what is no list."""
    return None if field.type.element is None else field.type.element.struct


def _identities(
    answer: type[Struct], asked: type[Struct] | None
) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    if issubclass(answer, Message):
        if answer in _MEMBERS:
            yield _MEMBERS[answer], attrgetter(_MEMBERS[answer])
        return
    names = [field.name for field in answer.FIELDS if field.name in _IDENTITIES]
    if asked is None:
        yield names[0], lambda value: value
        return
    given = {field.name for field in asked.FIELDS}
    for name in names:
        source = name if name in given else _IDENTITIES[name]
        if source in given:
            yield name, attrgetter(source)


def count_errors(response: Response, metrics: RequestMetrics) -> Generator[None, None, None]:
    """Count every error code in a response, in steps; looks only at the parts that have one."""
    for number, code in enumerate(_codes(response), 1):
        if code:
            metrics.errors.of(error_name(code)).value += 1
        if number % STEP_ELEMENTS == 0:
            yield


def _codes(struct: Struct) -> Iterator[int]:
    own, single, lists = _places(type(struct))
    if own:
        yield getattr(struct, own)
    for name in single:
        value = getattr(struct, name)
        if value is not None:
            yield from _codes(value)
    for name in lists:
        each_of = getattr(struct, name) or ()
        # To make everything twice, only to count what few of them tell, would be too much.
        if not isinstance(each_of, MadeList):
            for each in each_of:
                yield from _codes(each)


@cache
def _places(struct: type[Struct]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The name of its own error code, or none; the names of its structures, and of its lists of
    structures, in which there are some."""
    own, single, lists = "", [], []
    for field in struct.FIELDS:
        if field.name in CODE_NAMES:
            own = field.name
        elif field.type.struct is not None and any(_places(field.type.struct)):
            single.append(field.name)
        elif (
            field.type.element is not None
            and field.type.element.struct is not None
            and any(_places(field.type.element.struct))
        ):
            lists.append(field.name)
    return own, tuple(single), tuple(lists)
