"""Broken variants hook into named seams. They read and replace only public names of Tidelog, so
that a change behind a contract does not repair a variant unnoticed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.variants.variants import VARIANTS

MODULES = [
    path
    for path in sorted(Path(__file__).parent.glob("*variants.py"))
    if not path.name.startswith("test_")
]


def is_private(name: str) -> bool:
    is_special = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and not is_special


def private_names(source: str) -> Iterator[str]:
    """The private names that a module imports, reads, writes or spells in a string."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.alias(name=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                if is_private(name.rpartition(".")[2]):
                    yield name


@pytest.mark.parametrize(
    "source",
    [
        "from tidelog.wal.log.partition_log import _extent_of",
        "import tidelog._cluster",
        "log._producers.clear()",
        "self._next_offset = 0",
        "patch = (WalWriter, '_acknowledge', None)",
    ],
)
def test_a_private_name_is_noticed(source: str) -> None:
    assert list(private_names(source))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_variants_touch_no_private_name(path: Path) -> None:
    assert list(private_names(path.read_text())) == []


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_a_variant_replaces_public_names_that_are_there(variant: str) -> None:
    patches = VARIANTS[variant]()
    assert patches
    for owner, name, replacement in patches:
        assert not is_private(name)
        assert vars(owner)[name] is not replacement
