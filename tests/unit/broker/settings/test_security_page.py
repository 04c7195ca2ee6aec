"""A broker accepts the settings that docs/SECURITY.md shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidelog.broker.settings.listeners import configured_listeners
from tidelog.broker.settings.loading import load_settings

PAGE = Path(__file__).parents[4] / "docs" / "SECURITY.md"
BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("=")[0].strip(' "'))
def test_the_pages_settings_load(block: str, tmp_path: Path) -> None:
    secrets, config = tmp_path / "broker", tmp_path / "broker.toml"
    secrets.write_text("key.password=a\nhttp.token=0123456789abcdef\n")
    config.write_text(block.replace("/run/secrets/broker", str(secrets)))
    settings = load_settings(file=config, environment={"BROKER_LOGIN": "c"})
    listeners = configured_listeners(settings, None, None, "broker.example")
    assert settings.origins
    assert listeners.inter_broker in {each.name for each in listeners.all}
