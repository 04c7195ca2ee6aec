"""Settings of all tests: Hypothesis's profiles, foreign programs by name, unchanged logging, and a
watch over secrets."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from scripts.tools import MissingTool, require

pytest_plugins = ["tests.secret_watch"]

# A deadline or a health check of speed would fail on a busy machine and prove nothing.
_COMMON = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("dev", _COMMON, max_examples=50)
# The same commit gets the same verdict; other examples are for `dev` and `nightly` to find.
settings.register_profile("ci", _COMMON, max_examples=100, derandomize=True, database=None)
settings.register_profile("nightly", _COMMON, max_examples=5_000)


def hypothesis_profile() -> str:
    """TIDELOG_HYPOTHESIS_PROFILE; without it ci if CI is set, and otherwise dev."""
    return os.environ.get("TIDELOG_HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")


settings.load_profile(hypothesis_profile())


@pytest.fixture(autouse=True)
def unchanged_logging() -> Iterator[None]:
    """A command that a test runs in this process configures logging. Undo that."""
    root, ours = logging.getLogger(), logging.getLogger("tidelog")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture(scope="session")
def require_tool() -> Callable[[str], str]:
    """Path of a program from scripts/tools.py; fails with the remedy, skips if ALLOW_MISSING."""

    def path_of(name: str) -> str:
        try:
            path = require(name)
        except (MissingTool, ValueError) as error:
            pytest.fail(str(error), pytrace=False)
        if path is None:
            pytest.skip(f"without {name}, as ALLOW_MISSING says")
        return path

    return path_of
