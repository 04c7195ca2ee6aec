"""The page of figures: a run replaces the tables that it has measured."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.broker.scale import Scale
from benchmarks.page import NOTES, with_tables
from benchmarks.report import Results, run_of, tables

PAGE = Path(__file__).parents[3] / "docs" / "BENCHMARKS.md"
FIRST = with_tables("", "## One\n\n| 1 |\n\n## Two\n\n| 2 |\n\n", "By `first`.")


def test_a_run_of_a_part_replaces_its_tables_and_leaves_other_tables() -> None:
    page = with_tables(FIRST, "## Two\n\n| 22 |\n\n## Three\n\n| 3 |\n", "By `second`.")

    sections = [section.split("\n\n") for section in re.split(r"(?m)^(?=## )", page)[1:]]
    assert [section[:3] for section in sections[:-1]] == [
        ["## One", "By `first`.", "| 1 |"],
        ["## Two", "By `second`.", "| 22 |"],
        ["## Three", "By `second`.", "| 3 |"],
    ]
    assert sections[-1] == [f"{NOTES}\n"]


def test_a_run_of_a_new_part_comes_behind_the_tables_that_are_there() -> None:
    page = with_tables(FIRST, "## Three\n\n| 3 |\n\n## Four\n\n| 4 |\n", "By `second`.")

    headings = re.findall(r"(?m)^## .*$", page)
    assert headings == ["## One", "## Two", "## Three", "## Four", NOTES]


def test_the_prose_behind_the_tables_is_kept() -> None:
    page = with_tables(f"{FIRST}\nMuch.\n\n- And more.\n", "## One\n\n| 11 |\n", "By `second`.")

    assert page.endswith(f"{NOTES}\n\nMuch.\n\n- And more.\n")
    assert page.count(NOTES) == 1


def test_writing_the_same_tables_again_does_not_change_the_page() -> None:
    assert with_tables(FIRST, "## One\n\n| 1 |\n", "By `first`.") == FIRST
    assert with_tables(FIRST, "", "By `nothing`.") == FIRST


def test_the_run_names_its_command() -> None:
    results = Results("make bench", scale=Scale(80.0, 95.0, 0.5, 0.7, 0.004, 200.0, 198.0))

    assert with_tables("", tables(results), run_of(results)).count("By `make bench` on ") == 1


def test_each_table_of_the_documents_names_its_command() -> None:
    for section in re.split(r"(?m)^(?=## )", PAGE.read_text())[1:-1]:
        heading, run, *_ = section.split("\n\n")
        assert run.startswith(("By `make bench", "By `python -m benchmarks")), heading
