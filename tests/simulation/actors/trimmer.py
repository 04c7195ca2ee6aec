"""A client that requests the deletion of records."""

from __future__ import annotations

from tests.simulation.actors.actor import Actor, error_text
from tests.simulation.actors.log_client import NoAnswer, RequestRefused
from tests.simulation.rules.history import Isolation, Key, Poll, Trim

_PAUSE_SECONDS_MEAN = 4.0
_ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")


class Trimmer:
    """Now and then moves a log's start forward, at most to its end or to its last stable offset."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def run(self) -> None:
        """Go on until the run is ending."""
        actor = self._actor
        while not actor.stopping.is_set():
            await self._trim(actor.random.choice(actor.settings.trimmed_keys))
            await actor.pause(_PAUSE_SECONDS_MEAN)

    async def _trim(self, key: Key) -> None:
        actor = self._actor
        start = await actor.persist(lambda: actor.client.log_start(key))
        isolation = actor.random.choice(_ISOLATIONS)
        end = await actor.persist(lambda: actor.client.end_offset(key, isolation))
        operation = actor.history.invoke(actor.name, "trim")
        operation.trim = Trim(key, actor.random.randint(min(start, end), end))
        try:
            log_start = await actor.client.delete_records(*operation.trim)
        except (RequestRefused, NoAnswer) as error:
            actor.history.unknown(operation, error_text(error))
            return
        operation.polls.append(Poll(key, log_start, log_start, [], log_start=log_start))
        actor.history.ok(operation)
        if log_start < operation.trim.offset:
            actor.history.violate(f"{operation}: {key} begins at {log_start} still")
