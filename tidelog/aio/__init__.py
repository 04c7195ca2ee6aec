"""The Python SDK for asyncio: the names of `tidelog`, as coroutines and asynchronous iterators.

Settings, serializers, messages and errors are those of `tidelog`.
"""

from tidelog.aio.admin import Admin
from tidelog.aio.consumer import Consumer
from tidelog.aio.exactly_once import exactly_once
from tidelog.aio.producer import Delivery, Producer
from tidelog.aio.table import Table
from tidelog.aio.transactions import Transaction

__all__ = [
    "Admin",
    "Consumer",
    "Delivery",
    "Producer",
    "Table",
    "Transaction",
    "exactly_once",
]


def __dir__() -> list[str]:
    return __all__
