"""The store's address, from the options `store` and `store.*`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.options.option_names import lowered
from tidelog.storage.stores.s3.encryption import ENCRYPTION_OPTIONS

STORE_OPTIONS: Final = (
    *("endpoint", "region", "profile", "path_style", "sign_payload", "connect_timeout_ms"),
    *("request_timeout_ms", "access_key_id", "secret_access_key", "session_token"),
    *ENCRYPTION_OPTIONS,
)
"""The options after `store.`, for buckets at s3://. Without credentials, AWS's usual chain applies:
environment, profiles, web identity, containers, instance roles.
"""


def has_store(options: Mapping[str, str]) -> bool:
    """True if the options name a store."""
    return bool(lowered(options).get("store", "").strip())


def store_url_of(options: Mapping[str, str]) -> str:
    """The store's URL with the credentials and settings of the `store.*` options.

    InvalidConfiguration repeats no value: it may be a credential.
    """
    given = lowered(options)
    url = given.get("store", "").strip()
    if not url:
        raise InvalidConfiguration(
            "the option store is missing: the bucket's URL, as in s3://bucket/prefix or"
            " file:///var/tidelog. A catalog's table has it if CREATE TABLE ... USING tidelog"
            " OPTIONS (...) names no columns; an INSERT has it if it names columns, as in INSERT"
            " INTO t (key, value) SELECT ..."
        )
    extra = {}
    for name, value in given.items():
        if name.startswith("store."):
            setting = name.removeprefix("store.")
            if setting not in STORE_OPTIONS:
                raise InvalidConfiguration(
                    f"unknown option {name}; known are"
                    f" {', '.join(f'store.{known}' for known in STORE_OPTIONS)}"
                )
            extra[setting] = value
    if not extra:
        return url
    if not url.startswith("s3://"):
        names = ", ".join(f"store.{name}" for name in extra)
        raise InvalidConfiguration(f"{names}: only a store at s3:// has such options")
    return f"{url}{'&' if '?' in url else '?'}{urlencode(extra)}"


def only_store_url_of(options: Mapping[str, str]) -> str:
    """The URL from options that name only the store. InvalidConfiguration."""
    for name in lowered(options):
        if name != "store" and not name.startswith("store."):
            raise InvalidConfiguration(f"unknown option {name}; known are store and store.*")
    return store_url_of(options)
