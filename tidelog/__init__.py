"""Tidelog: a transactional log on object storage that speaks the Kafka protocol.

`from tidelog import Producer, Consumer, Admin, Table` gives the Python SDK, which lies in
`tidelog.sdk`. It is imported at the first use of a name, so that a broker does not load it.

The modules here are the base that every other folder may import: clock, entropy, network, offload,
errors, identifiers, crash points. They import no other folder.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.sdk.access_rules import AccessRule
    from tidelog.sdk.admin import Admin
    from tidelog.sdk.consumer import Consumer
    from tidelog.sdk.errors import (
        AbortableError,
        CommitOutcomeUnknown,
        DeliveryError,
        FatalError,
        KafkaRequestError,
        ProducerFencedError,
        RetriableError,
    )
    from tidelog.sdk.exactly_once import exactly_once
    from tidelog.sdk.messages import Message, NewMessage
    from tidelog.sdk.producer import Producer
    from tidelog.sdk.table import Table

__version__ = "0.1.0"

__all__ = [
    "AbortableError",
    "AccessRule",
    "Admin",
    "CommitOutcomeUnknown",
    "Consumer",
    "DeliveryError",
    "FatalError",
    "KafkaRequestError",
    "Message",
    "NewMessage",
    "Producer",
    "ProducerFencedError",
    "RetriableError",
    "Table",
    "exactly_once",
]

_MODULES = {
    "AbortableError": "errors",
    "AccessRule": "access_rules",
    "Admin": "admin",
    "CommitOutcomeUnknown": "errors",
    "Consumer": "consumer",
    "DeliveryError": "errors",
    "FatalError": "errors",
    "KafkaRequestError": "errors",
    "Message": "messages",
    "NewMessage": "messages",
    "Producer": "producer",
    "ProducerFencedError": "errors",
    "RetriableError": "errors",
    "Table": "table",
    "exactly_once": "exactly_once",
}
"""The module of `tidelog.sdk` that defines each public name."""

# A wheel carries the subsystems inside this package; in a checkout they sit beside it.
_here = Path(__file__).resolve().parent
if not (_here / "storage").is_dir() and (_here.parent / "storage").is_dir():
    __path__.append(str(_here.parent))


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.sdk.{module}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
