"""KafkaJS from npm, with the codecs that it takes from other packages, downloaded once."""

from __future__ import annotations

import subprocess
import zlib
from pathlib import Path

from tidelog.localstack.made_once import made_once

_PACKAGES = (
    "kafkajs@2.2.4",
    "kafkajs-snappy@1.1.0",
    "kafkajs-lz4@1.2.1",
    "zstd-codec@0.1.5",
    "fzstd@0.1.1",
)


def kafkajs_folder(cache: Path) -> Path:
    """The folder in which programs find the packages. Another list gets another folder."""
    folder = (cache / f"npm-{zlib.crc32(' '.join(_PACKAGES).encode()):08x}").absolute()
    with made_once(folder) as to_do:
        if to_do:
            (folder / "package.json").write_text('{"private": true}')
            command = ["npm", "install", "--no-audit", "--no-fund", "--silent", *_PACKAGES]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder
