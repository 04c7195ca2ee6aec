"""Values that lie elsewhere: `${env:NAME}` and `${file:PATH:KEY}`, as Kafka's config providers.

Secrets so stay out of files of settings and out of command lines, which every process can read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.errors import InvalidConfiguration

FILE_BYTES_MAX: Final = 1024 * 1024
_REFERENCE: Final = re.compile(r"\$\{(env|file):([^}]*)\}")


def has_reference(text: str) -> bool:
    """Whether a part of the text stands for another value."""
    return _REFERENCE.search(text) is not None


def resolved(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text with its references replaced. Replaced values are not searched again.

    Raises InvalidConfiguration, which names the reference and repeats no value.
    """
    return _REFERENCE.sub(lambda found: _resolve(found[1], found[2], environment), text)


def resolved_values(
    properties: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The properties with the references in their values replaced, as `resolved` does."""
    return {name: resolved(value, environment) for name, value in properties.items()}


def read_properties(path: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The properties in a file: a name, an equals sign and a value in each line.

    References in values are replaced. Raises InvalidConfiguration.
    """
    return resolved_values(_lines(path), environment)


def _resolve(kind: str, rest: str, environment: Mapping[str, str]) -> str:
    if kind == "env":
        if rest not in environment:
            raise InvalidConfiguration(f"${{env:{rest}}}: the environment has no such variable")
        return environment[rest]
    path, colon, key = rest.rpartition(":")
    if not colon:
        raise InvalidConfiguration(f"${{file:{rest}}}: write ${{file:PATH:KEY}}")
    found = _lines(Path(path))
    if key not in found:
        raise InvalidConfiguration(f"${{file:{rest}}}: {path} has no property {key}")
    return found[key]


def _lines(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        raise InvalidConfiguration(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfiguration(f"{path}: is not UTF-8 text") from None
    if len(data) > FILE_BYTES_MAX:
        raise InvalidConfiguration(f"{path}: has more than {FILE_BYTES_MAX} bytes")
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, equals, value = stripped.partition("=")
        if not equals:
            # The line may be a part of a secret.
            raise InvalidConfiguration(f"{path}: line {number} is not name=value")
        found[name.strip()] = value.strip()
    return found
