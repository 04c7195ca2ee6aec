"""A store in an S3 bucket, over obstore."""

from __future__ import annotations

import asyncio
import atexit
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from botocore.exceptions import BotoCoreError
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.exceptions import BaseError
from obstore.store import S3Store as ObstoreS3

from tidelog.storage.object_store import (
    AccessDenied,
    Buffer,
    ByteRange,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectMeta,
    StoredObject,
    StoreMisconfigured,
    Suffix,
    joined,
    pieces,
    size_of,
    validate_key,
    validate_prefix,
)
from tidelog.storage.stores.s3.s3_address import S3Address
from tidelog.storage.stores.s3.s3_errors import HttpAnswer, StoreOperation, store_error

if TYPE_CHECKING:
    from obstore import GetOptions, PutMode
    from obstore import ObjectMeta as ObstoreMeta
    from obstore.store import S3Config

JOINED_AT_ONCE_BYTES_MAX = 1024 * 1024
"""Joining more would block the event loop for a millisecond or longer."""
_LIST_PAGE_ENTRIES = 1000
# boto3 renews credentials that are valid for less than ten minutes, so the ones it returns outlive
# this period.
_CREDENTIALS_TTL = timedelta(minutes=5)
_EXIT_PAUSE_SECONDS = 0.05
_EXIT_PAUSES_MAX = 40
_ERRORS = (BaseError, FileNotFoundError)
_UNRANGED = re.compile(
    # MinIO answers the suffix of an empty object with an invalid range.
    "non-partial response when range requested|parse value for CONTENT_RANGE"
)


@cache
def _rest_at_exit() -> None:
    """Let obstore's threads finish before Python does.

    They hand over a result, then they take Python's lock once more to forget it. One that asks for
    it while the interpreter ends aborts the process (PyO3/pyo3-async-runtimes#40).
    """
    atexit.register(_rest)


def _rest() -> None:
    """Pause until no thread of obstore runs or waits for a processor, for two seconds at most.

    The pause leaves Python's lock free, so a thread that waited for it runs when the pause ends.
    """
    for _ in range(_EXIT_PAUSES_MAX):
        time.sleep(_EXIT_PAUSE_SECONDS)
        if not any(map(_is_at_work, Path("/proc/self/task").glob("*/stat"))):
            return


def _is_at_work(thread: Path) -> bool:
    with suppress(OSError):  # The thread has ended.
        return b"(tokio-rt-worker) R " in thread.read_bytes()
    return False


class S3Store:
    """Objects of a bucket below the address's prefix.

    - Each method sends one request and never repeats it (`max_retries=0`): only the caller knows
      whether a retry is safe.
    - One DeleteObjects request deletes several keys; a DELETE each if the address says so.
    - Puts are single PUTs, never multipart.
    - Bodies are hashed into the signature only if the address says so.
    - A HEAD's response has no body, so `head` cannot tell a missing bucket from a missing object.
      Every other method can.

    A listing must arrive in key order, as AWS S3 and MinIO list; else StoreMisconfigured. SeaweedFS
    lists a directory `a` before its siblings `a-b` and `a.b`, and does not accept a directory's
    name as `start_after`. Tidelog's keys have no such siblings, and it starts listings after
    objects.

    A cancelled call is abandoned; the store may still apply the sent request.
    """

    def __init__(self, address: S3Address) -> None:
        _rest_at_exit()
        self._address = address
        self._prefix = f"{address.prefix}/" if address.prefix else ""
        self._store = _obstore(address, bulk_delete=False)
        self._deleting = _obstore(address, bulk_delete=address.bulk_delete)

    @property
    def url(self) -> str:
        return self._address.url

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        path = self._path(key)
        if byte_range is not None and byte_range.length == 0:
            return await self._empty_range(key)
        try:
            result = await obstore.get_async(self._store, path, options=_get_options(byte_range))
            meta = result.meta
            data = memoryview(await result.bytes_async())
        except _ERRORS as error:
            answer = HttpAnswer.of(error)
            if answer.status == 416 or _UNRANGED.search(answer.message):
                # The range holds no byte of the object, which HTTP cannot express.
                return await self._empty_range(key, byte_range)
            raise store_error(error, key, self._address.bucket, StoreOperation.GET) from error
        return StoredObject(data=data, size=meta["size"], etag=_etag(key, meta["e_tag"]))

    async def head(self, key: str) -> ObjectMeta:
        path = self._path(key)
        try:
            meta = await obstore.head_async(self._store, path)
        except _ERRORS as error:
            raise store_error(error, key, self._address.bucket, StoreOperation.HEAD) from error
        return self._meta(meta)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        path = self._path(key)
        # Join the pieces here: passing them one by one to obstore costs as much or more.
        is_large = len(pieces(data)) > 1 and size_of(data) > JOINED_AT_ONCE_BYTES_MAX
        body = await asyncio.to_thread(joined, data) if is_large else joined(data)
        try:
            result = await obstore.put_async(
                self._store,
                path,
                body,
                mode=_put_mode(condition),
                use_multipart=False,
            )
        except _ERRORS as error:
            raise store_error(
                error, key, self._address.bucket, StoreOperation.PUT, condition
            ) from error
        return _etag(key, result["e_tag"])

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        validate_prefix(prefix)
        directory, separator, partial = prefix.rpartition("/")
        # obstore lists whole directories: begin just below the prefix, and stop after it.
        begin = max(start_after, prefix[:-1] if len(partial) > 1 else "")
        last = ""
        pages = obstore.list(
            self._store,
            prefix=self._prefix + directory + separator,
            offset=self._prefix + begin if begin else None,
            chunk_size=_LIST_PAGE_ENTRIES,
        )
        try:
            async for page in pages:
                for found in page:
                    meta = self._meta(found)
                    if meta.key <= last:
                        raise StoreMisconfigured(
                            meta.key, f"listed after {last}: this store does not list in key order"
                        )
                    last = meta.key
                    if meta.key.startswith(prefix):
                        if meta.key > start_after:
                            yield meta
                    elif meta.key > prefix:
                        return
        except _ERRORS as error:
            raise store_error(error, prefix, self._address.bucket, StoreOperation.LIST) from error

    async def delete(self, *keys: str) -> None:
        paths = list(map(self._path, keys))
        try:
            if len(paths) == 1:
                await obstore.delete_async(self._store, paths[0])
            else:
                await obstore.delete_async(self._deleting, paths)
        except _ERRORS as error:
            if len(paths) == 1 and HttpAnswer.of(error).code == "NoSuchKey":
                return
            raise store_error(
                error, keys[0], self._address.bucket, StoreOperation.DELETE
            ) from error

    async def close(self) -> None:
        """Do nothing: idle connections end with the store."""

    def _path(self, key: str) -> str:
        validate_key(key)
        return self._prefix + key

    def _meta(self, meta: ObstoreMeta) -> ObjectMeta:
        key = meta["path"].removeprefix(self._prefix)
        return ObjectMeta(
            key=key,
            size=meta["size"],
            etag=_etag(key, meta["e_tag"]),
            modified_ms=int(meta["last_modified"].timestamp() * 1000),
        )

    async def _empty_range(
        self, key: str, byte_range: ByteRange | Suffix | None = None
    ) -> StoredObject:
        meta = await self.head(key)
        if (isinstance(byte_range, ByteRange) and byte_range.start < meta.size) or (
            isinstance(byte_range, Suffix) and meta.size > 0
        ):
            raise StoreMisconfigured(key, f"the store does not answer {byte_range} of the object")
        return StoredObject(data=b"", size=meta.size, etag=meta.etag)


def _obstore(address: S3Address, *, bulk_delete: bool) -> ObstoreS3:
    try:
        credentials = Boto3CredentialProvider(address.session(), ttl=_CREDENTIALS_TTL)
    except (ValueError, BotoCoreError) as error:
        raise AccessDenied(
            address.url,
            "no AWS credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
            " AWS_PROFILE, or the URL's access_key_id and secret_access_key",
        ) from error
    # obstore takes missing options from the environment, which may contradict the address.
    config: S3Config = {
        "region": address.region,
        "virtual_hosted_style_request": not address.path_style,
        "unsigned_payload": not address.sign_payload,
        "conditional_put": "etag",
        "skip_signature": False,
        "disable_bulk_delete": not bulk_delete,
    }
    if address.endpoint is not None:
        config["aws_endpoint_url_s3"] = address.endpoint
    if address.encryption is not None:
        config.update(address.encryption.obstore_config())
    return ObstoreS3(
        address.bucket,
        config=config,
        client_options={
            "allow_http": address.allow_http,
            "connect_timeout": timedelta(milliseconds=address.connect_timeout_ms),
            "timeout": timedelta(milliseconds=address.request_timeout_ms),
        },
        retry_config={"max_retries": 0},
        credential_provider=credentials,
    )


def _get_options(byte_range: ByteRange | Suffix | None) -> GetOptions:
    match byte_range:
        case None:
            return {}
        case ByteRange(start, length):
            return {"range": (start, start + length)}
        case Suffix(length):
            return {"range": {"suffix": length}}


def _put_mode(condition: Condition | None) -> PutMode:
    match condition:
        case None:
            return "overwrite"
        case IfAbsent():
            return "create"
        case IfMatch(etag):
            return {"e_tag": etag}


def _etag(key: str, etag: str | None) -> str:
    if not etag:
        raise StoreMisconfigured(
            key, "the store answers without an ETag, so versions cannot be compared"
        )
    return etag
