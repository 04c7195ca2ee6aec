"""The optional parts of an installation, and the remedy where one is missing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from tidelog.errors import InvalidConfiguration

EXTRAS: Final = {
    "cryptography": "broker",
    "h11": "broker",
    "jwt": "broker",
    "prometheus_client": "broker",
    "uvloop": "broker",
    "moto": "localstack",
    "werkzeug": "localstack",
    "pandas": "pandas",
    "polars": "polars",
    "duckdb": "duckdb",
    "pyspark": "spark",
}
"""The extra of the distribution that brings a module."""


def imported(name: str, what: str) -> ModuleType:
    """The module `name`, which `what` needs. InvalidConfiguration names an extra that it lacks."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(missing)
        if extra is None:
            raise
        raise InvalidConfiguration(
            f"{what} needs {missing}, which is not installed: install it with {installation(extra)}"
        ) from error


def installation(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'tidelog[{extra}]'"


def is_installed(extra: str) -> bool:
    """Whether all modules of an extra are there. Imports none of them."""
    try:
        return all(find_spec(name) for name, brought in EXTRAS.items() if brought == extra)
    except ModuleNotFoundError:
        return False
