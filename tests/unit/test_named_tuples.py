"""Named tuples that are made without their classes' constructors have all of their fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module

from tests.unit.repository.test_layout import modules


def made(name: str) -> Iterator[tuple[str, int, int]]:
    """The calls of `new_tuple` in a module: the class, its fields, those that are given."""
    source = modules()[name].read_text()
    if "new_tuple(" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Name("new_tuple"), args=[ast.Name(kind), ast.Tuple(elts=given)]
            ) if not any(isinstance(each, ast.Starred) for each in given):
                fields = getattr(import_module(name), kind)._fields
                yield f"{name}.{kind}", len(fields), len(given)


def test_each_call_gives_a_value_for_each_field() -> None:
    calls = [call for name in modules() if name != "tidelog.named_tuples" for call in made(name)]
    assert len(calls) >= 20
    assert [call for call in calls if call[1] != call[2]] == []
