"""The base classes of message schemas: structures, messages, requests and responses."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

from tidelog.protocol.fields import Field, WireKind

Reader = Callable[[memoryview, int, int], tuple[Any, int]]
"""(frame, position, end) -> (message, position after it)."""
Writer = Callable[[Any, bytearray, list[Any]], bytearray]
"""(message, buffer to extend, finished buffers) -> the last buffer, to be finished."""

StepReader = Callable[[memoryview, int, int], Generator[None, None, tuple[Any, int]]]
StepWriter = Callable[[Any, bytearray, list[Any]], Generator[None, None, bytearray]]
"""The same in steps, for long messages."""

_UNSET = object()


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Turns the fields of a class body into slots and a keyword-only constructor."""

    FIELDS: tuple[Field, ...]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> StructType:
        """Collect the fields; `options` go to `__init_subclass__`.

        Raises:
            TypeError: a base class has fields, which would leave their order undefined.
        """
        if any(getattr(base, "FIELDS", ()) for base in bases):
            raise TypeError(f"{name} extends a structure that has fields")
        fields = tuple(
            replace(value, name=key) for key, value in namespace.items() if isinstance(value, Field)
        )
        body = {key: value for key, value in namespace.items() if not isinstance(value, Field)}
        body["__slots__"] = tuple(field.name for field in fields)
        body["FIELDS"] = fields
        if fields:
            body["__init__"] = _constructor(fields)
        return super().__new__(mcs, name, bases, body, **options)


def _constructor(fields: tuple[Field, ...]) -> Callable[..., None]:
    """A keyword-only `__init__`; each call creates new lists and structures for missing ones."""
    namespace: dict[str, Any] = {"unset": _UNSET}
    parameters, lines = [], []
    for field in fields:
        name = field.name
        if field.type.kind is WireKind.ARRAY and field.default == ():
            parameters.append(f"{name}=unset")
            lines.append(f" self.{name} = [] if {name} is unset else {name}")
        elif field.type.kind is WireKind.STRUCT and field.default is not None:
            namespace[f"new_{name}"] = field.default
            parameters.append(f"{name}=unset")
            lines.append(f" self.{name} = new_{name}() if {name} is unset else {name}")
        else:
            namespace[f"default_{name}"] = field.default
            parameters.append(f"{name}=default_{name}")
            lines.append(f" self.{name} = {name}")
    source = f"def __init__(self, *, {', '.join(parameters)}):\n" + "\n".join(lines)
    exec(source, namespace)  # noqa: S102 (made of field names only)
    constructor: Callable[..., None] = namespace["__init__"]
    return constructor


class Struct(metaclass=StructType):
    """A part of a message. Mutable, compared by value."""

    FIELDS: ClassVar[tuple[Field, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.FIELDS)
        return f"{type(self).__name__}({values})"


class Message(Struct):
    """The contents of a frame after its header.

    A subclass names its API key, its lowest and highest version, and the first version in the
    flexible encoding of KIP-482 (None if there is none).
    """

    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[range]
    FLEXIBLE: ClassVar[range]
    READERS: ClassVar[dict[int, Reader]]
    WRITERS: ClassVar[dict[int, Writer]]
    STEP_READERS: ClassVar[dict[int, StepReader]]
    STEP_WRITERS: ClassVar[dict[int, StepWriter]]

    def __init_subclass__(
        cls,
        *,
        api_key: int = -1,
        versions: tuple[int, int] = (0, -1),
        flexible: int | None = None,
    ) -> None:
        super().__init_subclass__()
        lowest, highest = versions
        cls.API_KEY = api_key
        cls.VERSIONS = range(lowest, highest + 1)
        cls.FLEXIBLE = range(0) if flexible is None else range(flexible, highest + 1)
        cls.READERS = {}
        cls.WRITERS = {}
        cls.STEP_READERS = {}
        cls.STEP_WRITERS = {}


class Response(Message):
    pass


R_co = TypeVar("R_co", bound=Response, covariant=True)


class Request(Message, Generic[R_co]):
    """A request to a broker; `R_co` is the type of its response."""
