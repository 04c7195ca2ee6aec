"""Server-side encryption of objects, from the options of a store's URL.

| `sse` | The store encrypts with | Every request for an object carries |
|---|---|---|
| `s3` | a key of its own | nothing; a PUT names the method |
| `kms` | a key of its key management service | nothing; a PUT names the method and the key |
| `c` | the caller's key, which it forgets | the key; without it no object can be read |
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from tidelog.errors import InvalidConfiguration

if TYPE_CHECKING:
    from obstore.store import S3Config

ENCRYPTION_OPTIONS: Final = (
    "sse",
    "sse_kms_key_id",
    "sse_customer_key_file",
    "sse_customer_key_env",
)
KINDS: Final = ("s3", "kms", "c")
KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Encryption:
    """How a store encrypts. `repr` shows no key."""

    kind: str
    """One of KINDS."""
    kms_key_id: str | None = None
    """None: the store's default key."""
    customer_key: bytes = field(default=b"", repr=False)

    def obstore_config(self) -> S3Config:
        """The options with which obstore sends the headers."""
        if self.kind == "s3":
            return {"server_side_encryption": "AES256"}
        if self.kind == "kms":
            config: S3Config = {"server_side_encryption": "aws:kms"}
            if self.kms_key_id is not None:
                config["sse_kms_key_id"] = self.kms_key_id
            return config
        return {
            "server_side_encryption": "sse-c",
            "sse_customer_key_base64": base64.b64encode(self.customer_key).decode(),
        }

    def put_arguments(self) -> dict[str, Any]:
        """The arguments of boto3's `put_object`."""
        if self.kind == "s3":
            return {"ServerSideEncryption": "AES256"}
        if self.kind == "kms":
            key = {} if self.kms_key_id is None else {"SSEKMSKeyId": self.kms_key_id}
            return {"ServerSideEncryption": "aws:kms", **key}
        return self.get_arguments()

    def get_arguments(self) -> dict[str, Any]:
        """The arguments of boto3's `get_object`."""
        if self.kind != "c":
            return {}
        return {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": self.customer_key}

    def hadoop_options(self) -> dict[str, str]:
        """The options with which s3a reads the objects, without their prefix."""
        if self.kind != "c":
            # The store decrypts for everyone that may read.
            return {}
        key = base64.b64encode(self.customer_key).decode()
        return {"encryption.algorithm": "SSE-C", "encryption.key": key}


def parse_encryption(
    where: str, options: Mapping[str, str], endpoint: str | None
) -> Encryption | None:
    """The encryption that the options of a URL ask for; `where` names the store in messages.

    InvalidConfiguration names the wrong option, and never a key.
    """
    kind = options.get("sse")
    kms_key = options.get("sse_kms_key_id")
    sources = [name for name in ENCRYPTION_OPTIONS[2:] if name in options]
    if kind is not None and kind not in KINDS:
        raise InvalidConfiguration(f"{where}: sse is one of {', '.join(KINDS)}, not {kind!r}")
    if kms_key is not None and kind != "kms":
        raise InvalidConfiguration(f"{where}: sse_kms_key_id needs sse=kms")
    if sources and kind != "c":
        raise InvalidConfiguration(f"{where}: {sources[0]} needs sse=c")
    if kind != "c":
        return None if kind is None else Encryption(kind, kms_key)
    if len(sources) != 1:
        raise InvalidConfiguration(
            f"{where}: sse=c needs sse_customer_key_file or sse_customer_key_env, and not both"
        )
    if endpoint is not None and not _keeps_secrets(endpoint):
        raise InvalidConfiguration(
            f"{where}: sse=c sends the key with every request, and {endpoint} is plain HTTP: use an"
            " endpoint with https://"
        )
    return Encryption("c", customer_key=_customer_key(where, sources[0], options[sources[0]]))


def _customer_key(where: str, option: str, value: str) -> bytes:
    if option == "sse_customer_key_env":
        text = os.environ.get(value)
        if text is None:
            raise InvalidConfiguration(f"{where}: {option}: the variable {value} is not set")
    else:
        try:
            text = Path(value).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not base64"
            raise InvalidConfiguration(f"{where}: {option}: {value}: {why}") from None
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidConfiguration(
            f"{where}: {option}: {value} does not hold {KEY_BYTES} bytes as base64; make a key"
            " with: openssl rand -base64 32"
        )
    return key


def _keeps_secrets(endpoint: str) -> bool:
    """Whether no other machine sees the bytes of requests."""
    parts = urlsplit(endpoint)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
