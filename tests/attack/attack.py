"""An attack: a function, and the settings of its broker."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tests.attack import attacks

SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """The broker under attack."""

    kafka: tuple[str, int]
    http: tuple[str, int]
    topic: str
    """The topic of the well-behaved client, with one partition."""
    sasl: tuple[str, int] | None = None
    """The listener with SASL, if the attack needs one."""


Run = Callable[[Target], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One way to starve other clients."""

    name: str
    says: str
    """The description: the first line of the function's docstring."""
    run: Run
    """Attacks until it is cancelled. If it returns earlier, the attack is over."""
    seconds: float
    settings: Mapping[str, object] = field(default_factory=dict)
    """The settings with which the broker starts."""
    store: str = "memory"
    """The kind of store: "memory", or "file" for a folder of the test."""
    descriptors_max: int | None = None
    """RLIMIT_NOFILE of the broker, or None for the system's default."""
    sasl: bool = False
    """Whether the broker has a listener with SASL beside that of the well-behaved client."""


_found: dict[str, Attack] = {}


def attack(
    *,
    seconds: float = 10.0,
    settings: Mapping[str, object] | None = None,
    store: str = "memory",
    descriptors_max: int | None = None,
    sasl: bool = False,
) -> Callable[[Run], Run]:
    """Make a function an attack. The report uses its name and its docstring."""
    if not 0 < seconds <= SECONDS_MAX:
        raise ValueError(f"an attack lasts for up to {SECONDS_MAX:g} s, not {seconds:g}")

    def register(run: Run) -> Run:
        name = run.__name__.replace("_", " ")
        if name in _found:
            raise ValueError(f"there is an attack {name} already")
        if not run.__doc__:
            raise ValueError(f"the attack {name} has no docstring")
        says = " ".join(run.__doc__.split("\n\n")[0].split())
        told = settings or {}
        _found[name] = Attack(name, says, run, seconds, told, store, descriptors_max, sasl)
        return run

    return register


def all_attacks() -> Mapping[str, Attack]:
    """Every attack by its name, in the order of modules and of functions within a module."""
    for module in sorted(pkgutil.iter_modules(attacks.__path__), key=lambda each: each.name):
        importlib.import_module(f"{attacks.__name__}.{module.name}")
    return dict(_found)
