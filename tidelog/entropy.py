"""Randomness as an argument: the only module that draws random numbers."""

from __future__ import annotations

import random
import uuid
from typing import Protocol


class Entropy(Protocol):
    """The random functions of Tidelog. Simulations seed them."""

    def uuid(self) -> uuid.UUID:
        """A new version-4 UUID."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high]."""
        ...


class SystemEntropy:
    """Randomness from the operating system."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


class SeededEntropy:
    """Randomness that repeats for the same seed."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
