"""Makes named tuples where thousands are made a second."""

from __future__ import annotations

from typing import Final

new_tuple: Final = tuple.__new__
"""`new_tuple(Kind, (1, 2))` is `Kind(1, 2)` in a third of the time, and takes each field in its
order: a NamedTuple's own constructor is a function of Python.
"""
