"""Any store as an fsspec file system, so that pandas, pyarrow and DuckDB open its objects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractBufferedFile

from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.storage.object_store import (
    AccessDenied,
    ByteRange,
    ObjectMeta,
    ObjectNotFound,
    ObjectStore,
    StoreError,
)
from tidelog.storage.stores.location import open_reader

T = TypeVar("T")


class TidelogFileSystem(AsyncFileSystem):  # type: ignore[misc] # fsspec has no types
    """Objects of a store, read-only, under the protocol `tidelog`.

    A path is an object's key. The slashes in keys make the directories. The option `store` names
    the store: an ObjectStore, or a URL as `tidelog.storage.stores.location.open_reader` takes it
    (fsspec URLs included):

        pandas.read_parquet("tidelog://topics/.../part.parquet",
                            storage_options={"store": "s3://bucket/prefix?region=eu-west-1"})
        pyarrow.parquet.read_table("topics/.../part.parquet",
                                   filesystem=TidelogFileSystem("file:///var/tidelog"))
        duckdb.register_filesystem(TidelogFileSystem(store))
        duckdb.sql("select * from read_parquet('tidelog://topics/**/*.parquet')")

    A chained URL names the store behind the key: `tidelog://key::file:///var/tidelog`.

    Leave credentials to the environment: fsspec keeps a file system's options, with those of a URL,
    to recreate it elsewhere (pickle, Dask).

    Requests run on fsspec's event loop in its background thread. With `asynchronous=True` the
    `_`-methods run on the caller's loop. Writes are refused: only brokers write a bucket.
    """

    protocol = "tidelog"
    root_marker = ""

    def __init__(
        self,
        store: str | ObjectStore | None = None,
        *,
        fo: str | None = None,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        asynchronous: bool = False,
        loop: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(asynchronous=asynchronous, loop=loop, **options)
        if target_options:
            raise ValueError("a chained store takes no options; give them in the URL of `store`")
        if store is None and fo is not None and target_protocol is not None:
            store = _chained_url(target_protocol, fo)
        if store is None:
            raise ValueError(
                "tidelog:// needs the option store: storage_options={'store': 'file:///dir'}"
            )
        if isinstance(store, str):
            store = open_reader(store, SystemClock(), SystemEntropy())
        self.store = store

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return str(path).removeprefix("tidelog://").strip("/")

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        with _fsspec_errors(path):
            try:
                if path:
                    return _described(await self.store.head(path))
            except ObjectNotFound:
                pass
            async for _ in self.store.list(f"{path}/" if path else ""):
                return _directory(path)
        if not path:
            return _directory(path)
        raise FileNotFoundError(path)

    async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        found = await self._found(path, maxdepth=1, withdirs=True)
        found.pop(path, None)
        if not found:
            info = await self._info(path)
            found = {path: info} if info["type"] == "file" else {}
        return list(found.values()) if detail else list(found)

    async def _find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        found = await self._found(path, maxdepth, withdirs)
        if not found and path:
            with _fsspec_errors(path):
                try:
                    found = {path: _described(await self.store.head(path))}
                except ObjectNotFound:
                    found = {}
        return found if detail else list(found)

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        with _fsspec_errors(path):
            if start is None and end is None:
                return bytes((await self.store.get(path)).data)
            if (start or 0) < 0 or end is None or end < 0:
                size = (await self.store.head(path)).size
                start, end, _ = slice(start, end).indices(size)
            begin = start or 0
            stored = await self.store.get(path, ByteRange(begin, max(0, end - begin)))
            return bytes(stored.data)

    async def _get_file(self, rpath: str, lpath: str, **kwargs: Any) -> None:
        data = None if await self._isdir(rpath) else await self._cat_file(rpath)
        await asyncio.to_thread(_save, Path(lpath), data)

    async def _pipe_file(
        self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any
    ) -> NoReturn:
        _refuse(path)

    async def _put_file(
        self, lpath: str, rpath: str, mode: str = "overwrite", **kwargs: Any
    ) -> NoReturn:
        _refuse(rpath)

    async def _rm_file(self, path: str, **kwargs: Any) -> NoReturn:
        _refuse(path)

    async def _cp_file(self, path1: str, path2: str, **kwargs: Any) -> NoReturn:
        _refuse(path2)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> TidelogFile:
        if mode != "rb":
            _refuse(path)
        return TidelogFile(self, path, mode, **kwargs)

    def modified(self, path: str) -> datetime:
        """The time of the put that stored the object, by the store's clock."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def created(self, path: str) -> datetime:
        """The modification time: a put creates the whole object."""
        return self.modified(path)

    async def _found(
        self, path: str, maxdepth: int | None, withdirs: bool
    ) -> dict[str, dict[str, Any]]:
        """The files below a directory by path, and its directories if `withdirs`."""
        prefix = f"{path}/" if path else ""
        found: dict[str, dict[str, Any]] = {}
        if withdirs and maxdepth is None and path:
            found[path] = _directory(path)
        with _fsspec_errors(path):
            async for meta in self.store.list(prefix):
                names = meta.key[len(prefix) :].split("/")
                depth_max = len(names) if maxdepth is None else maxdepth
                if withdirs:
                    for depth in range(1, min(len(names), depth_max + 1)):
                        directory = prefix + "/".join(names[:depth])
                        found.setdefault(directory, _directory(directory))
                if len(names) <= depth_max:
                    found[meta.key] = _described(meta)
        if list(found) == [path]:
            return {}
        return found


class TidelogFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec has no types
    """An object opened for reading; fsspec's caches decide the read-ahead."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data


def _chained_url(protocol: str, path: str) -> str:
    if protocol in {"file", "local"}:
        return Path(path).as_uri()
    return f"{protocol}://{path.lstrip('/')}"


def _save(path: Path, data: bytes | None) -> None:
    """Write the data to a file; without data, create a directory."""
    (path if data is None else path.parent).mkdir(parents=True, exist_ok=True)
    if data is not None:
        path.write_bytes(data)


def _described(meta: ObjectMeta) -> dict[str, Any]:
    return {
        "name": meta.key,
        "type": "file",
        "size": meta.size,
        "ETag": meta.etag,
        "mtime": meta.modified_ms / 1000,
    }


def _directory(path: str) -> dict[str, Any]:
    return {"name": path, "type": "directory", "size": 0}


def _refuse(path: str) -> NoReturn:
    raise PermissionError(f"{path}: tidelog:// is read-only; only brokers write a bucket")


@contextmanager
def _fsspec_errors(path: str) -> Iterator[None]:
    """Convert store errors into the errors that fsspec's users expect."""
    try:
        yield
    except ObjectNotFound as error:
        raise FileNotFoundError(path) from error
    except AccessDenied as error:
        raise PermissionError(str(error)) from error
    except StoreError as error:
        raise OSError(str(error)) from error
