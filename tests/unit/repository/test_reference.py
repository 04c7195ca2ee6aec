"""The generated pages on commands and protocol agree with the code."""

from __future__ import annotations

import pytest

from scripts.reference import DOCUMENTS, commands_page, protocol_page, unexplained


@pytest.mark.parametrize(
    ("name", "made"), [("COMMANDS.md", commands_page), ("PROTOCOL.md", protocol_page)]
)
def test_a_page_is_that_of_the_code(name: str, made: object) -> None:
    assert callable(made)
    assert (DOCUMENTS / name).read_text(encoding="utf-8") == made(), (
        "write it again: python -m scripts.reference"
    )


def test_each_api_of_kafka_is_served_or_explained() -> None:
    assert unexplained() == set()


def test_the_pages_name_each_command_and_each_version() -> None:
    commands, protocol = commands_page(), protocol_page()
    assert "\n#### tidelog cluster features upgrade\n" in commands
    assert "tidelog topics create planes --config cleanup.policy=compact" in commands
    assert "| Produce | 0 | 0 to 13 | " in protocol
    assert "ShareFetch" in protocol
