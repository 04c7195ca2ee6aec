"""Loads a broker's settings: flags override the environment, a TOML file and the defaults."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tidelog.broker.settings.kinds import SettingValue
from tidelog.broker.settings.settings import (
    BROKER_TABLE,
    BrokerSettings,
    check_together,
    parse_broker_setting,
)
from tidelog.errors import InvalidConfiguration
from tidelog.references import has_reference, resolved

ENVIRONMENT_PREFIX: Final = "TIDELOG_"
RESERVED_VARIABLES: Final = frozenset(
    {
        "TIDELOG_ARGUMENTS",
        "TIDELOG_BOOTSTRAP",
        "TIDELOG_COMMAND_CONFIG",
        "TIDELOG_HEALTH",
        "TIDELOG_LOG_FORMAT",
        "TIDELOG_LOG_LEVEL",
        "TIDELOG_STORE",
        "TIDELOG_MINIO",
        "TIDELOG_HYPOTHESIS_PROFILE",
        "TIDELOG_CRASH_POINTS",
    }
)
"""These variables of commands, deployments and the repository's tools are no settings."""

_VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {ENVIRONMENT_PREFIX + name.upper().replace(".", "_"): name for name in BROKER_TABLE}
)

_SCRAM: Final = re.compile(r"\.scram\.sha\.(256|512)\.")
_SERVICE_LINK: Final = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$"
)
"""How variables end that Kubernetes sets for a service, after the service's name."""


def load_settings(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Iterable[str] = (),
) -> BrokerSettings:
    """The settings of a broker, from these sources in order of precedence:

    flags (`name=value`), the environment (default: the process's), a TOML file, the defaults.
    References in values (`${env:NAME}`, `${file:PATH:KEY}`) are replaced.
    Raises InvalidConfiguration.
    """
    layers: list[dict[str, tuple[object, str]]] = []
    if file is not None:
        layers.append(_from_file(file))
    if environment is None:
        environment = os.environ
    layers.append(_from_environment(environment))
    layers.append(_from_flags(flags))
    values: dict[str, SettingValue] = {}
    origins: dict[str, str] = {}
    rereads: dict[str, Callable[[], str]] = {}
    for layer in layers:
        for name, (raw, origin) in layer.items():
            values[name] = _value(name, raw, origin, environment)
            origins[name] = origin
            rereads.pop(name, None)
            if isinstance(raw, str) and has_reference(raw):
                rereads[name] = partial(_replaced, name, raw, origin, environment)
    check_together(values)
    return BrokerSettings(values, origins=origins, rereads=rereads)


def _value(name: str, raw: object, origin: str, environment: Mapping[str, str]) -> SettingValue:
    """The value of a setting, with its references replaced. Messages show only the references."""
    texts = raw if isinstance(raw, list) else [raw]
    if not any(isinstance(text, str) and has_reference(text) for text in texts):
        return parse_broker_setting(name, raw, origin)
    found = [
        _replaced(name, text, origin, environment) if isinstance(text, str) else text
        for text in texts
    ]
    replaced = found if isinstance(raw, list) else found[0]
    return parse_broker_setting(name, replaced, origin, shown=raw)


def _replaced(name: str, text: str, origin: str, environment: Mapping[str, str]) -> str:
    try:
        return resolved(text, environment)
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"{name} ({origin}): {error}") from None


def _from_flags(flags: Iterable[str]) -> dict[str, tuple[object, str]]:
    given: dict[str, tuple[object, str]] = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        if not equals or not name.strip():
            raise InvalidConfiguration(f"setting {flag!r} (flag): must be name=value")
        given[name.strip()] = (value, "flag")
    return given


def _from_environment(environment: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    given: dict[str, tuple[object, str]] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in RESERVED_VARIABLES:
            continue
        dotted = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
        # The name of a variable has no hyphens.
        dotted = _SCRAM.sub(r".scram-sha-\1.", dotted)
        if variable not in _VARIABLES and _SERVICE_LINK.search(variable):
            raise InvalidConfiguration(
                f"unknown setting {dotted} (environment {variable}): Kubernetes sets such variables"
                " for a service whose name begins with tidelog; set enableServiceLinks: false in"
                " the pod's spec"
            )
        given[_VARIABLES.get(variable, dotted)] = (value, f"environment {variable}")
    return given


def _from_file(path: Path) -> dict[str, tuple[object, str]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfiguration(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfiguration(f"{path}: is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        # `max.connections` and `max.connections.per.ip` cannot both be bare keys of one file.
        raise InvalidConfiguration(
            f'{path}: is not TOML: {error} (quote the names: "max.connections" = 100)'
        ) from None
    origin = f"file {path}"
    return {name: (value, origin) for name, value in _flatten("", document)}


def _flatten(prefix: str, table: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """TOML reads `num.partitions = 3` as a table within a table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(f"{prefix}{key}.", value)
        else:
            yield prefix + key, value
