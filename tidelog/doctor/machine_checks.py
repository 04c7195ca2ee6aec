"""Checks of this machine: the versions of installed packages, and Java for Spark."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.doctor.findings import Finding, ok, warning
from tidelog.programs import program_version

PACKAGES: Final = ("tidelog", "boto3", "obstore", "pyarrow", "confluent-kafka")
JAVA_OLDEST: Final = 17
_JAVA_REMEDY: Final = f"Spark needs Java {JAVA_OLDEST} or newer: install it, or set JAVA_HOME"


def machine_findings(environment: Mapping[str, str]) -> list[Finding]:
    """The checks of this machine. `environment` are the process's variables."""
    return [_versions(), _java(environment)]


def _versions() -> Finding:
    versions = [f"python {platform.python_version()}"]
    versions += [f"{name} {version}" for name in PACKAGES if (version := _installed(name))]
    return ok("versions", ", ".join(versions))


def _java(environment: Mapping[str, str]) -> Finding:
    """Spark takes JAVA_HOME before the path."""
    home = environment.get("JAVA_HOME")
    program = (
        str(Path(home) / "bin" / "java")
        if home
        else shutil.which("java", path=environment.get("PATH"))
    )
    version = program_version([program, "-version"], 'version "') if program else None
    spark = _installed("pyspark")
    if version is not None and version[0] >= JAVA_OLDEST:
        words = f"java {'.'.join(map(str, version))} ({program})"
        return ok("spark", f"{words}, pyspark {spark or 'not installed'}")
    found = (
        f"java {'.'.join(map(str, version))} is too old ({program})"
        if version is not None
        else f"{program} does not run"
        if home
        else "no java"
    )
    if spark is None:
        return ok("spark", f"{found}, pyspark not installed: Spark cannot run here")
    return warning("spark", f"{found}, pyspark {spark}", _JAVA_REMEDY)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
