"""The files mention no machine of the authors, no private package index, and no tool that wrote
them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Each pattern is written so that it does not match its own text here.
FORBIDDEN = {
    "a path of one machine (take tmp_path, or a path relative to the file)": [
        r"/wor[k]/",
        r"/roo[t]/",
        r"/hom[e]/\w",
        r"/User[s]/\w",
        r"/tm[p]/\w",
        r"[A-Z]:\\User[s]",
    ],
    # npm writes no URLs into its lock file with omit-lockfile-registry-resolved=true.
    "the host of a package index (each machine has its own)": [
        r"pyp[i]\.org",
        r"pythonhoste[d]\.org",
        r"registry\.npmj[s]\.org",
        r"repo1?\.mave[n]\.",
        r"proxy\.golan[g]\.org",
        r"sum\.golan[g]\.org",
        r"crate[s]\.io",
        r"deb\.debia[n]\.org",
        r"index-ur[l]\s*[= ]",
    ],
    "a tool that writes text": [
        r"\bclaud[e]\b",
        r"\banthropi[c]\b",
        r"\bopena[i]\b",
        r"\b(chat)?gp[t](-\d|\b)",
        r"\bcopilo[t]\b",
        r"\blanguage mode[l]",
        r"\bcoding agen[t]",
        r"\bAI[- ](agen[t]|assistan[t]|generate[d])",
        r"co-authored-b[y]:",
    ],
    "the work's own book-keeping (say what the code does, not who asked for it)": [
        r"\bissue #?\d+\b",
        r"(?-i:\bTOD[O]\b|\bFIXM[E]\b)",
    ],
}
NOT_TEXT = {".zip", ".gz", ".parquet", ".wal", ".png", ".jar", ".bin"}


def offences(text: str) -> list[tuple[int, str, str]]:
    """Line number, the text that was found, and its kind."""
    return sorted(
        (text.count("\n", 0, match.start()) + 1, match[0], what)
        for what, patterns in FORBIDDEN.items()
        for pattern in patterns
        for match in re.finditer(pattern, text, re.IGNORECASE)
    )


def test_no_tracked_file_names_a_machine_an_index_or_a_tool() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    found = []
    for name in filter(None, listing.split("\0")):
        path = ROOT / name
        if path.suffix in NOT_TEXT or not path.is_file():
            continue
        for line, match, what in offences(path.read_bytes().decode(errors="replace")):
            found.append(f"{name}:{line}: {match!r} is {what}")
    assert found == []


def test_an_offence_is_noticed() -> None:
    assert offences("fine\nsee /wor" + "k/main") == [(2, "/wor" + "k/", next(iter(FORBIDDEN)))]
    assert len(offences("https://pyp" + "i.org/simple")) == 1
    assert len(offences("# TOD" + "O: later")) == 1
    # Kafka's own words are no offence.
    assert offences("session timeout, fetch session, user agent, coordinator assistant") == []
