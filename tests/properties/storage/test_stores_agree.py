"""Any history of requests has the same answers from files as from memory."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.storage.object_store import (
    ByteRange,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    Suffix,
)
from tidelog.storage.stores.filesystem import FilesystemStore
from tidelog.storage.stores.memory import MemoryStore

# No name is another's directory, as files cannot be both.
DIRECTORIES = ["", "a/", "a/b/", "a-/", "a0/", "b/"]
FILES = ["x", "x-", "x.y", "x0", "y", "é"]
keys = st.builds(str.__add__, st.sampled_from(DIRECTORIES), st.sampled_from(FILES))
prefixes = keys | st.sampled_from(["", "a", "a/", "a/b", "a/b/", "a-", "b/x", "c", "é"])
bodies = st.binary(max_size=20)
ranges = (
    st.none()
    | st.builds(ByteRange, st.integers(0, 25), st.integers(0, 25))
    | st.builds(Suffix, st.integers(0, 25))
)
choices = st.sampled_from(["plain", "absent", "current", "stale"])


class StoresAgree(RuleBasedStateMachine):
    """Each version is written to both stores; their etags differ, and are kept in pairs."""

    @initialize()
    def start(self) -> None:
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.memory = MemoryStore(SystemClock())
        self.files = FilesystemStore(
            Path(self.folder.name), SystemClock(), SeededEntropy(1), threads=2
        )
        self.versions: dict[str, list[tuple[str, str]]] = {}

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self.files.close())
            self.runner.close()
            self.folder.cleanup()

    @rule(key=keys, body=bodies, choice=choices, pieces=st.integers(1, 4))
    def put(self, key: str, body: bytes, choice: str, pieces: int) -> None:
        parts = [body[i::pieces] for i in range(pieces)]
        conditions = self.conditions(key, choice)
        outcomes = [
            self.runner.run(self.outcome(store, key, parts, condition))
            for store, condition in zip((self.memory, self.files), conditions, strict=True)
        ]
        assert (outcomes[0] is None) == (outcomes[1] is None), (key, choice)
        if outcomes[0] is not None and outcomes[1] is not None:
            self.versions.setdefault(key, []).append((outcomes[0], outcomes[1]))

    def conditions(self, key: str, choice: str) -> tuple[Condition | None, Condition | None]:
        known = self.versions.get(key, [("none", "none")])
        match choice:
            case "plain":
                return None, None
            case "absent":
                return IfAbsent(), IfAbsent()
            case "current":
                return IfMatch(known[-1][0]), IfMatch(known[-1][1])
            case _:
                return IfMatch(known[0][0]), IfMatch(known[0][1])

    async def outcome(
        self, store: ObjectStore, key: str, parts: list[bytes], condition: Condition | None
    ) -> str | None:
        try:
            return await store.put(key, parts, condition)
        except PreconditionFailed:
            return None

    @rule(key=keys)
    def delete(self, key: str) -> None:
        for store in (self.memory, self.files):
            self.runner.run(store.delete(key))

    @rule(key=keys, byte_range=ranges)
    def get(self, key: str, byte_range: ByteRange | Suffix | None) -> None:
        async def read(store: ObjectStore) -> tuple[bytes, int] | None:
            try:
                stored = await store.get(key, byte_range)
            except ObjectNotFound:
                return None
            assert stored.etag == (await store.head(key)).etag
            return bytes(stored.data), stored.size

        assert self.runner.run(read(self.memory)) == self.runner.run(read(self.files))

    @rule(prefix=prefixes, start_after=prefixes)
    def list(self, prefix: str, start_after: str) -> None:
        async def listed(store: ObjectStore) -> list[tuple[str, int]]:
            return [(meta.key, meta.size) async for meta in store.list(prefix, start_after)]

        assert self.runner.run(listed(self.memory)) == self.runner.run(listed(self.files))


TestStoresAgree = StoresAgree.TestCase
# Each put waits for the disk, so the profile's number of histories is halved.
TestStoresAgree.settings = settings(
    max_examples=settings.default.max_examples // 2, stateful_step_count=25
)
