"""A broker in a thread of the test's process.

It is the broker of `tidelog server`, on a store that outlives it. `kill` cuts it off where it is:
what it has not put into the store is lost, as with a killed process. `restart` starts a new one at
the same address.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from functools import cached_property
from types import TracebackType
from typing import Any, Final

from tidelog.errors import Refused
from tidelog.sdk.admin import Admin
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.messages import Headers, Message
from tidelog.sdk.producer import Producer
from tidelog.testing.broker_thread import BrokerThread
from tidelog.testing.inspection import InspectedPartition, inspect

SETTINGS: Final[dict[str, object]] = {
    # Members of a group do not wait for others.
    "group.initial.rebalance.delay.ms": 0,
    # A test's process may stand still for long: no broker loses its lease for that.
    "broker.session.timeout.ms": 120_000,
}
DECIDED: Final = "Prepare"
"""Begins the names of states in which a transaction's markers are not all written."""
PAUSE_SECONDS: Final = 0.02
READ_SETTINGS: Final[dict[str, Any]] = {
    "auto_offset_reset": "earliest",
    # A reading to the end often ends with a fetch that finds nothing.
    "fetch_max_wait_ms": 10,
}
_numbers = itertools.count(1)


class Broker:
    """`with Broker() as broker:` runs a broker on a store of its own, in memory.

    Every store's URL is taken, and every setting of a broker by its name, with underscores for
    dots.
    """

    def __init__(self, store: str = "memory://", **settings: object) -> None:
        number = next(_numbers)
        self.store = f"memory://testing-{number}" if store == "memory://" else store
        """The store's URL, for `Table` too. In memory it is there as long as the process."""
        self._settings = SETTINGS | {name.replace("_", "."): v for name, v in settings.items()}
        self._address: tuple[str, int] | None = None
        self._thread: BrokerThread | None = None
        self._names = itertools.count(1)

    @property
    def bootstrap(self) -> str:
        """The broker's address, the same after a restart."""
        if self._address is None:
            raise Refused("the broker has not started: use it in `with Broker() as broker:`")
        return f"{self._address[0]}:{self._address[1]}"

    @property
    def is_running(self) -> bool:
        """Whether a broker serves."""
        return self._thread is not None and self._thread.is_alive

    def start(self) -> Broker:
        """Start, and return when the broker serves. Raises what ended its start."""
        if self.is_running:
            raise Refused("the broker runs already")
        thread = BrokerThread(self.store, self._settings, self._address)
        self._address = thread.start()
        self._thread = thread
        return self

    def stop(self) -> None:
        """End politely: everything that was accepted is durable."""
        self._ended(politely=True)

    def kill(self) -> None:
        """Cut the broker off. Clients get no answer any more."""
        self._ended(politely=False)

    def restart(self) -> None:
        """Start again at the same address, on the same store; kill it first if it runs."""
        if self._thread is not None:
            self.kill()
        self.start()

    def topic(self, partitions: int = 1, **configs: object) -> str:
        """The name of a new topic."""
        name = f"topic-{next(self._names)}"
        self._admin.create_topic(name, partitions, configs)
        return name

    def group(self) -> str:
        """The name of a group that does not exist."""
        return f"group-{next(self._names)}"

    def produce(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None = None,
        headers: Headers | None = None,
        **settings: Any,
    ) -> None:
        """Send values and wait until they are durable.

        `keys` has one for each value, `headers` go with all of them. ValueError: there are more of
        the one than of the other; nothing was sent.
        """
        sent = (
            [(value, None) for value in values]
            if keys is None
            else [*zip(values, keys, strict=True)]
        )
        with Producer(self.bootstrap, **settings) as producer:
            for value, key in sent:
                producer.send(topic, value, key, headers)

    def read(self, topic: str, **settings: Any) -> list[Message]:
        """The committed messages of a topic, by partition and offset.

        A commit returns when it is decided, and its messages are seen a little later. So this waits
        for the transactions that are decided.
        """
        while any(each.startswith(DECIDED) for each in self._admin.transactions().values()):
            threading.Event().wait(PAUSE_SECONDS)
        with Consumer(self.bootstrap, topic, **(READ_SETTINGS | settings)) as consumer:
            found = list(consumer.to_end())
        return sorted(found, key=lambda each: (each.partition, each.offset))

    def inspect(self, topic: str) -> list[InspectedPartition]:
        """The topic's partitions as the store holds them now, also after `kill`.

        Raises NoSuchTopic, CorruptObject.
        """
        return inspect(self.store, topic)

    @cached_property
    def _admin(self) -> Admin:
        return Admin(self.bootstrap)

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            self.kill()

    def _ended(self, *, politely: bool) -> None:
        if self._thread is None:
            raise Refused("the broker does not run")
        thread, self._thread = self._thread, None
        thread.end(politely=politely)
