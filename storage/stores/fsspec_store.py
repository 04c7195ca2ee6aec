"""A read-only store for every URL that fsspec opens: `gs://`, `abfs://`, `sftp://` and others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit, urlunsplit

import fsspec

from tidelog.errors import InvalidConfiguration
from tidelog.storage.object_store import (
    AccessDenied,
    Buffer,
    ByteRange,
    Condition,
    ObjectMeta,
    ObjectNotFound,
    StoredObject,
    StoreError,
    StoreNotApplied,
    Suffix,
    clip,
    validate_key,
    validate_prefix,
)

T = TypeVar("T")

_ETAG_FIELDS = ("ETag", "etag", "md5Hash", "content_md5", "generation", "version_id")
_MODIFIED_FIELDS = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


class FsspecStore:
    """Read-only objects below an fsspec URL: fsspec has no conditional writes.

    A get costs two requests: one for size and version, one for the bytes. A listing is read whole,
    then sorted, because fsspec guarantees no order. The calls run in threads of this store. If the
    file system reports no ETag, size and modification time form one.
    """

    def __init__(self, url: str, threads: int = 8, **options: Any) -> None:
        self._url = _without_credentials(url)
        try:
            self._filesystem, root = fsspec.url_to_fs(
                url, use_listings_cache=False, skip_instance_cache=True, **options
            )
        except (ImportError, ValueError) as error:
            raise InvalidConfiguration(f"{self._url}: {error}") from error
        except Exception as error:
            # Those of ftp and sftp connect here, and raise errors of their own libraries.
            failure = StoreNotApplied("", f"opening it failed: {type(error).__name__}: {error}")
            failure.store = self._url
            raise failure from error
        self._root = root.rstrip("/")
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tidelog-fsspec")

    @property
    def url(self) -> str:
        return self._url

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        return await self._run(key, lambda: self._read(validate_key(key), byte_range))

    async def head(self, key: str) -> ObjectMeta:
        return await self._run(key, lambda: self._meta(validate_key(key)))

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        self._refuse(key)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        for meta in await self._run(prefix, lambda: self._find(validate_prefix(prefix))):
            if meta.key > start_after:
                yield meta

    async def delete(self, *keys: str) -> None:
        self._refuse(keys[0])

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown, wait=True)

    def _read(self, key: str, byte_range: ByteRange | Suffix | None) -> StoredObject:
        meta = self._meta(key)
        start, end = clip(byte_range, meta.size)
        data = self._filesystem.cat_file(self._path(key), start, end) if start < end else b""
        return StoredObject(data=data, size=meta.size, etag=meta.etag)

    def _meta(self, key: str) -> ObjectMeta:
        info = self._filesystem.info(self._path(key))
        if info["type"] != "file":
            raise FileNotFoundError(key)
        return _described(key, info)

    def _find(self, prefix: str) -> Sequence[ObjectMeta]:
        directory, _, _ = prefix.rpartition("/")
        path = self._path(directory) if directory else self._root
        found: dict[str, dict[str, Any]] = self._filesystem.find(path, detail=True)
        metas = [
            _described(name.removeprefix(self._root).lstrip("/"), info)
            for name, info in found.items()
        ]
        return sorted(
            (meta for meta in metas if meta.key.startswith(prefix)), key=lambda meta: meta.key
        )

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    async def _run(self, key: str, function: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        except FileNotFoundError as error:
            raise ObjectNotFound(key, "no such object") from error
        except PermissionError as error:
            raise AccessDenied(key, f"reading {self._url} is refused: {error}") from error
        except (StoreError, ValueError):
            raise
        except Exception as error:
            why = f"reading {self._url} failed: {type(error).__name__}: {error}"
            raise StoreNotApplied(key, why) from error

    def _refuse(self, key: str) -> NoReturn:
        raise AccessDenied(
            key,
            f"{self._url} is opened through fsspec, which is read-only here: fsspec has no"
            " conditional writes; write through file:///dir or s3://bucket",
        )


def _described(key: str, info: dict[str, Any]) -> ObjectMeta:
    modified_ms = _modified_ms(info)
    etag = next((str(info[field]) for field in _ETAG_FIELDS if info.get(field)), None)
    return ObjectMeta(
        key=key,
        size=info["size"],
        etag=etag or f"{info['size']:x}-{modified_ms:x}",
        modified_ms=modified_ms,
    )


def _modified_ms(info: dict[str, Any]) -> int:
    """The file system's modification time, or 0 if it reports none."""
    modified = next((info[field] for field in _MODIFIED_FIELDS if info.get(field)), 0)
    if isinstance(modified, str):
        modified = datetime.fromisoformat(modified)
    if isinstance(modified, datetime):
        if modified.tzinfo is None:
            modified = modified.replace(tzinfo=UTC)
        modified = modified.timestamp()
    return int(modified * 1000)


def _without_credentials(url: str) -> str:
    """The URL without user information and query: either may hold a secret."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
