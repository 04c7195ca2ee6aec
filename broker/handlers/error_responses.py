"""The response that reports one error for a whole request. Its shape comes from the schemas.

A structure with an error code takes the code, and its lists stay empty. A structure without one
repeats a list of the request: each element of the response identifies an element of the request.
The tables below hold the rest of the rules, which the schemas do not express.
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
    produce,
    transactions,
)
from tidelog.protocol.schemas.cluster import metadata, replicas, topics
from tidelog.protocol.schemas.security import scram
from tidelog.protocol.wire import STEP_ELEMENTS

if TYPE_CHECKING:
    from tidelog.broker.telemetry.metrics import RequestMetrics

CODE_NAMES = frozenset({"error_code", "partition_error_code"})
"""The names of fields that hold an error code; AddPartitionsToTxn has the second one."""
_MESSAGE = "error_message"
_Elements: TypeAlias = "tuple[Callable[[Any], Sequence[Any] | None], type[Struct] | None]"
"""Returns a list of the request from a structure of it; then the structure of the list's elements,
None for plain values."""
_IDENTITIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "name": "name",
        "topic": "topic",
        "user": "name",
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
        "entity": "entity",
    }
)
"""The fields that identify an element of a response, each with its other name in requests. An
element of a plain list is the value of the first such field."""
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
"""The numbers that Kafka sends with an error in place of the schema's default, 0."""
_REPEATED: Final[Mapping[type[Struct], _Elements]] = MappingProxyType(
    {
        replicas.AlterReplicaLogDirsRequest: (
            lambda request: [topic for directory in request.dirs for topic in directory.topics],
            replicas.AlterReplicaLogDirTopic,
        ),
        scram.AlterUserScramCredentialsRequest: (
            lambda request: [
                *{each.name: each for each in (*request.deletions, *request.upsertions)}.values()
            ],
            scram.ScramCredentialDeletion,
        ),
        # Before version 3 the error is an answer without directories.
        replicas.DescribeLogDirsRequest: (lambda _request: (), replicas.DescribeLogDirsRequest),
    }
)
"""The list that a response repeats if its shape differs from the request's."""
_REPEATING: Final = frozenset(
    {
        metadata.MetadataResponse,
        replicas.ElectLeadersResponse,
        scram.DescribeUserScramCredentialsResponse,
    }
)
"""Responses that repeat the request although they have a code of their own."""
_MEMBERS: Final[Mapping[type[Struct], str]] = MappingProxyType(
    {groups.JoinGroupResponse: "member_id"}
)
"""Responses that identify the client itself, and the field that does."""


def error_response(
    request: Request[Response], version: int, code: ErrorCode, message: str
) -> Response | None:
    """The response with `code` for each element of the request; None if the request gets no
    response."""
    if not wants_answer(request):
        return None
    (response,) = _answer_shape(type(request), version).filled([request], code, message)
    assert isinstance(response, Response)
    return response


def wants_answer(request: Request[Response]) -> bool:
    """Whether the client waits for an answer."""
    return not (isinstance(request, produce.ProduceRequest) and request.acks == 0)


def element_errors(
    asked: tuple[type[Struct], str],
    answered: tuple[type[Struct], str],
    elements: Sequence[Any],
    version: int,
    code: ErrorCode,
    message: str,
) -> list[Struct]:
    """The answers with `code` to some elements of a list.

    `asked` and `answered`: the structures that have the list of elements, and that of answers, and
    the names of both lists.
    """
    return _list_shape(asked, answered, version).filled(elements, code, message)


@cache
def _list_shape(
    asked: tuple[type[Struct], str], answered: tuple[type[Struct], str], version: int
) -> _Shape:
    answer = _element_struct(_field(*answered))
    assert answer is not None
    return _shape(answer, _element_struct(_field(*asked)), version)


def _field(struct: type[Struct], name: str) -> Field:
    return next(field for field in struct.FIELDS if field.name == name)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The rule that fills one structure of a response."""

    struct: type[Struct]
    unknown: Mapping[str, int]
    code_name: str | None
    has_message: bool
    identities: tuple[tuple[str, Callable[[Any], Any]], ...]
    """The fields that identify an element of the request, with the functions that read them."""
    repeated: tuple[str, Callable[[Any], Sequence[Any] | None], _Shape] | None
    """The list that repeats a list of the request: its name, the function that returns the
    request's list, and the shape of an element."""

    def filled(self, asked: Sequence[Any], code: ErrorCode, message: str) -> list[Struct]:
        """One filled structure for each of these elements of the request."""
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
    """The shape of `answer` for a structure of the request, or for a plain value (None)."""
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
    """The only list of a request's structure in this version, or its entry in `_REPEATED`."""
    if asked in _REPEATED:
        return _REPEATED[asked]
    (field,) = (
        field
        for field in asked.FIELDS
        if field.type.element is not None and version in field.versions
    )
    return attrgetter(field.name), _element_struct(field)


def _element_struct(field: Field) -> type[Struct] | None:
    """The structure of a list's elements; None for plain values, and if the field is no list."""
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
    """Count every error code in a response, in steps. Parts without a code are skipped."""
    for number, code in enumerate(_codes(response), 1):
        if code:
            metrics.errors.of(error_name(code)).value += 1
        if number % STEP_ELEMENTS == 0:
            yield


def first_code(response: Response) -> int | None:
    """The first error code in a response; None if it has none. Lists that are made late have
    none."""
    return next(_codes(response), None)


def _codes(struct: Struct) -> Iterator[int]:
    own, single, lists = _places(type(struct))
    if own:
        yield getattr(struct, own)
    for name in single:
        value = getattr(struct, name)
        if value is not None:
            yield from _codes(value)
    for name, only_code in lists:
        each_of = getattr(struct, name) or ()
        # A MadeList makes its elements at each iteration. Making them twice costs too much.
        if isinstance(each_of, MadeList):
            continue
        if only_code is not None:
            yield from map(only_code, each_of)
        else:
            for each in each_of:
                yield from _codes(each)


_Lists: TypeAlias = "tuple[tuple[str, Callable[[Struct], int] | None], ...]"
"""The names of lists of structures; with a function that returns the only code of an element."""


@cache
def _places(struct: type[Struct]) -> tuple[str, tuple[str, ...], _Lists]:
    """The name of the structure's own error code, or empty; then the names of its structures, and
    its lists of structures, that contain error codes."""
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
            code, *parts = _places(field.type.element.struct)
            lists.append((field.name, None if any(parts) else attrgetter(code)))
    return own, tuple(single), tuple(lists)
