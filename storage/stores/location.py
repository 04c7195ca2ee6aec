"""Opens the store that a URL names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tidelog.clock import Clock
from tidelog.entropy import Entropy
from tidelog.errors import InvalidConfiguration
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.filesystem import FilesystemStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import MeteredStore, StoreStatistics
from tidelog.storage.stores.retrying import RetryingStore, StoreRetrySettings

_memory_stores: dict[str, MemoryStore] = {}
"""The stores of `memory://` URLs, which live as long as the process."""


def open_store(
    url: str,
    clock: Clock,
    entropy: Entropy,
    *,
    retry: StoreRetrySettings | None = None,
    statistics: StoreStatistics | None = None,
) -> ObjectStore:
    """The store at `file:///dir`, `memory://name` or `s3://bucket/prefix?option=value`.

    `statistics` counts each request, and safe requests are retried. This function sends no request:
    `tidelog.storage.stores.probe` does. A `memory://` URL names the same store throughout the
    process. InvalidConfiguration for any other URL.
    """
    return _composed(_bare_store(url, clock, entropy), clock, entropy, retry, statistics)


def open_reader(
    url: str,
    clock: Clock,
    entropy: Entropy,
    *,
    retry: StoreRetrySettings | None = None,
    statistics: StoreStatistics | None = None,
) -> ObjectStore:
    """Like `open_store`, and a read-only fsspec store for other URLs (`gs://`, `abfs://`).

    Raises also StoreNotApplied, if a file system cannot connect.
    """
    scheme = urlsplit(url).scheme
    if scheme in {"file", "memory", "s3", ""}:
        return open_store(url, clock, entropy, retry=retry, statistics=statistics)
    # The import of fsspec is slow, and few processes need it.
    from tidelog.storage.stores.fsspec_store import FsspecStore

    return _composed(FsspecStore(url), clock, entropy, retry, statistics)


def bills_requests(url: str) -> bool:
    """True if each request to this store is assumed to cost money: S3 without a plain HTTP
    endpoint.

    A store without encryption is assumed to be the operator's own.
    """
    parts = urlsplit(url)
    endpoints = parse_qs(parts.query).get("endpoint", [])
    return parts.scheme == "s3" and not any(each.startswith("http://") for each in endpoints)


def _composed(
    store: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    retry: StoreRetrySettings | None,
    statistics: StoreStatistics | None,
) -> ObjectStore:
    return RetryingStore(MeteredStore(store, clock, statistics), clock, entropy, retry)


def _bare_store(url: str, clock: Clock, entropy: Entropy) -> ObjectStore:
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            if parts.netloc not in {"", "localhost"} or not parts.path or parts.query:
                raise InvalidConfiguration(
                    f"store {_shown(url)}: a directory's URL has three slashes, as in"
                    " file:///var/tidelog, and no options"
                )
            if "#" in url:
                raise InvalidConfiguration(
                    f"store {_shown(url)}: a # in a directory's name is written %23"
                )
            return FilesystemStore(Path(unquote(parts.path)), clock, entropy)
        case "memory":
            name = f"{parts.netloc}{parts.path}"
            if name not in _memory_stores:
                _memory_stores[name] = MemoryStore(clock, f"memory://{name}")
            return _memory_stores[name]
        case "s3":
            # The import of boto3 is slow, and a local store does not need it.
            from tidelog.storage.stores.s3.s3 import S3Store
            from tidelog.storage.stores.s3.s3_address import parse_s3_url

            return S3Store(parse_s3_url(url))
        case "":
            raise InvalidConfiguration(
                f"store {_shown(url)} is not a URL; a directory's is file:///path"
            )
        case scheme:
            # The rest of the URL may hold credentials.
            raise InvalidConfiguration(
                f"no store is known by {scheme}://; use file:///dir, s3://bucket/prefix or memory://"
            )


def _shown(url: str) -> str:
    """The URL without its query, which may hold credentials."""
    return repr(url.partition("?")[0])
