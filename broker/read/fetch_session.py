"""Incremental fetch sessions (KIP-227): the broker remembers a consumer's partitions.

Pure: no I/O, no clock. The broker declines a session by answering id 0; the client then sends full
requests. So the loss of all sessions (a restart, an eviction) costs nothing but bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from tidelog.errors import TidelogError

SESSIONLESS_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1

TopicKey: TypeAlias = str | UUID
"""A topic as requests name it: by name before Fetch v13, by id from v13 on."""
PartitionKey: TypeAlias = tuple[TopicKey, int]


class FetchSessionError(TidelogError):
    """The named session cannot continue; the client starts anew with a full request."""


class SessionNotFound(FetchSessionError):
    """Answered with FETCH_SESSION_ID_NOT_FOUND."""


class InvalidSessionEpoch(FetchSessionError):
    """Answered with INVALID_FETCH_SESSION_EPOCH."""


class SessionTopicKeyMixed(FetchSessionError):
    """Names and topic ids within one session: answered with FETCH_SESSION_TOPIC_ID_ERROR."""


@dataclass(slots=True)
class FetchTarget:
    """One partition of a fetch: the position, and the last answer to the client."""

    key: PartitionKey
    fetch_offset: int
    bytes_max: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    told_high_watermark: int = -1
    told_log_start: int = -1

    def update_if_changed(
        self, *, records: bool, error: bool, high_watermark: int, log_start: int
    ) -> bool:
        """Whether an incremental answer must contain this partition; stores the sent values."""
        changed = (high_watermark, log_start) != (self.told_high_watermark, self.told_log_start)
        # An error is sent until it has gone, so the other values do not count as sent with it.
        self.told_high_watermark = -1 if error else high_watermark
        self.told_log_start = -1 if error else log_start
        return records or error or changed


@dataclass(slots=True)
class FetchSession:
    """The partitions that a client is reading, in the order of service."""

    session_id: int
    by_id: bool
    last_used: float
    epoch: int = 1
    targets: dict[PartitionKey, FetchTarget] = field(default_factory=dict)

    def advance(self) -> None:
        """Expect the next request."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def update(self, asked: Iterable[FetchTarget], forgotten: Iterable[PartitionKey]) -> None:
        """Apply an incremental request's changes."""
        for target in asked:
            known = self.targets.get(target.key)
            if known is None:
                self.targets[target.key] = target
                continue
            known.fetch_offset = target.fetch_offset
            known.bytes_max = target.bytes_max
            known.current_leader_epoch = target.current_leader_epoch
            known.last_fetched_epoch = target.last_fetched_epoch
        for key in forgotten:
            self.targets.pop(key, None)

    def serve_last(self, keys: Iterable[PartitionKey]) -> None:
        """Move partitions that were just served after the others, so that none starves."""
        for key in keys:
            target = self.targets.pop(key, None)
            if target is not None:
                self.targets[key] = target


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The meaning of one request: the partitions to read, and the form of the answer."""

    targets: list[FetchTarget]
    session: FetchSession | None
    incremental: bool

    @property
    def session_id(self) -> int:
        """The id for the answer; 0 without a session."""
        return SESSIONLESS_ID if self.session is None else self.session.session_id


class FetchSessions:
    """The broker's sessions, at most `slots_max` of them.

    When all slots are taken, the least recently used session is evicted if it has been idle for
    `eviction_seconds`. Otherwise the broker declines the new session.
    """

    def __init__(
        self, slots_max: int, new_id: Callable[[], int], eviction_seconds: float = 120.0
    ) -> None:
        self._slots_max = slots_max
        self._new_id = new_id
        self._eviction_seconds = eviction_seconds
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(
        self,
        session_id: int,
        epoch: int,
        asked: list[FetchTarget],
        forgotten: list[PartitionKey],
        *,
        by_id: bool,
        now: float,
    ) -> FetchPlan:
        """The partitions that a request reads. Raises FetchSessionError for an unknown session."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            if epoch == FINAL_EPOCH or not asked:
                return FetchPlan(asked, None, incremental=False)
            return FetchPlan(asked, self._create(asked, by_id, now), incremental=False)
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionNotFound(f"fetch session {session_id} is not known here")
        if session.epoch != epoch:
            raise InvalidSessionEpoch(
                f"fetch session {session_id} expects epoch {session.epoch}, not {epoch}"
            )
        if session.by_id != by_id:
            raise SessionTopicKeyMixed(f"fetch session {session_id} mixes topic names and ids")
        session.update(asked, forgotten)
        self._touch(session, now)
        if not session.targets:
            del self._sessions[session_id]
            return FetchPlan([], None, incremental=False)
        session.advance()
        return FetchPlan(list(session.targets.values()), session, incremental=True)

    def throttled(self, plan: FetchPlan) -> int:
        """The session id of an empty answer to a throttled client.

        A client takes no empty answer to a full fetch, so it does not learn of a new session.
        """
        if plan.session is None or plan.incremental:
            return plan.session_id
        # It may have been evicted while the fetch waited.
        self._sessions.pop(plan.session.session_id, None)
        return SESSIONLESS_ID

    def _create(self, asked: list[FetchTarget], by_id: bool, now: float) -> FetchSession | None:
        if self._slots_max <= 0:
            return None
        if len(self._sessions) >= self._slots_max:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used < self._eviction_seconds:
                return None
            del self._sessions[oldest.session_id]
        session_id = self._new_id()
        while session_id == SESSIONLESS_ID or session_id in self._sessions:
            session_id = self._new_id()
        session = FetchSession(session_id, by_id, now)
        session.update(asked, ())
        self._sessions[session_id] = session
        return session

    def _touch(self, session: FetchSession, now: float) -> None:
        # Dictionaries keep insertion order: the first session is the least recently used one.
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session
        session.last_used = now
