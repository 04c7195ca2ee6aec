"""Replacing single functions of the production code while a context lasts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

Patch: TypeAlias = tuple[Any, str, Any]
"""An owner (module or class), a name in it, and the replacement."""
Breakage: TypeAlias = Callable[[], list[Patch]]


def everywhere(name: str, replacement: object) -> list[Patch]:
    """Replace a function of the coordinators in every module that has imported it."""
    return [
        (module, name, replacement)
        for path, module in list(sys.modules.items())
        if path.startswith("tidelog.coordinator.") and name in vars(module)
    ]


@contextmanager
def patched(patches: list[Patch]) -> Iterator[None]:
    """Apply the patches while the context lasts."""
    with ExitStack() as stack:
        for owner, name, replacement in patches:
            # Read the stored attribute, not the bound one, so that a class method stays a class
            # method.
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, replacement)
        yield
