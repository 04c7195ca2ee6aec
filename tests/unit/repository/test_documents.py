"""The links, paths, modules, targets and commands that the documents name exist."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import click
import pytest

from tidelog.cli.root import cli

ROOT = Path(__file__).resolve().parents[3]
MAPPED = {"storage", "wal", "coordinator", "broker", "spark_source", "localstack"}
"""Folders at the top level that are imported as `tidelog.NAME`."""
COLUMNS_MAX = 100
WRITTEN_BY_PROGRAMS = {
    "docs/ATTACKS.md",
    "docs/BENCHMARKS.md",
    "docs/COMMANDS.md",
    "docs/CONFIGURATION.md",
    "docs/DAMAGE.md",
    "docs/PROTOCOL.md",
    "docs/VERIFICATION.md",
}
PAGES_ABOUT_CODE = ("CONTRIBUTING.md", "docs/architecture/", "docs/formats/", "docs/GLOSSARY.md")
DOCUMENT_OF_CHECK = {"glossary": "docs/GLOSSARY.md", "names": "CONTRIBUTING.md"}
"""Where a check's examples stand, if it does not look at README.md."""

Check: TypeAlias = Callable[[Path, str], Iterator[str]]
"""The faults of a document, given its place and its text."""


@cache
def tracked_files() -> frozenset[str]:
    """Files of the repository, including files that are not committed yet."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return frozenset(name for name in listing.split("\0") if name and (ROOT / name).is_file())


@cache
def tracked_folders() -> frozenset[str]:
    """Folders of the repository that hold a file."""
    return frozenset(parent.as_posix() for name in tracked_files() for parent in Path(name).parents)


def documents() -> list[Path]:
    """Every Markdown file of the repository."""
    return sorted(ROOT / name for name in tracked_files() if name.endswith(".md"))


# The contents of a document.


def split(text: str) -> tuple[str, list[str]]:
    """The text with fenced blocks left empty, and the lines of the blocks."""
    prose, code = [], []
    fence = ""
    for line in text.splitlines():
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and not fence:
            fence = mark[1]
            prose.append("")
        elif mark and line.strip() == fence:
            fence = ""
            prose.append("")
        elif fence:
            code.append(line)
            prose.append("")
        else:
            prose.append(line)
    return "\n".join(prose), code


def quoted(text: str) -> list[str]:
    """The texts in single backticks."""
    return re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"\n", " ", split(text)[0]))


def commands(text: str, program: str) -> list[list[str]]:
    """The words behind a program's name: in backticks, and in the lines of fenced blocks."""
    lines = [*quoted(text), *(line.strip().removeprefix("$ ") for line in split(text)[1])]
    return [line.split()[1:] for line in lines if line.split()[:1] == [program]]


def slugs(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", split(text)[0], re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number, base = 0, slug
        while slug in found:
            number += 1
            slug = f"{base}-{number}"
        found.add(slug)
    return found


# Faults of a document.


def wrong_links(document: Path, text: str) -> Iterator[str]:
    prose = re.sub(r"`[^`\n]*`", "", split(text)[0])
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve()
        if name and not file.exists():
            yield f"link to {target}: no such file"
        elif anchor and anchor not in slugs(file.read_text() if name else text):
            yield f"link to {target}: no such heading"


def wrong_paths(_: Path, text: str) -> Iterator[str]:
    """A quoted path that begins with a folder of the repository, or ends as its files do."""
    tops = {name.partition("/")[0] for name in tracked_files() if "/" in name}
    for token in quoted(text):
        path = token.partition("::")[0].rstrip("/")
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", path):
            continue
        is_whole = "/" in token and path.partition("/")[0] in tops
        if is_whole and path not in tracked_files() and path not in tracked_folders():
            yield f"`{token}`: no such file or folder"
        elif not is_whole and path.endswith((".py", ".md")) and not is_end_of_a_path(path):
            yield f"`{token}`: no such file"


def is_end_of_a_path(end: str) -> bool:
    """Whether a file of the repository has these last folders and this name."""
    return any(f"/{name}".endswith(f"/{end}") for name in tracked_files())


def wrong_targets(_: Path, text: str) -> Iterator[str]:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    for words in commands(text, "make"):
        for word in words:
            if not re.fullmatch(r"[a-z][a-z-]*", word):
                break
            if word not in targets:
                yield f"`make {word}`: no such target"


def wrong_commands(_: Path, text: str) -> Iterator[str]:
    for words in commands(text, "tidelog"):
        command: click.Command = cli
        for number, word in enumerate(words):
            if not isinstance(command, click.Group) or not re.fullmatch(r"[a-z][a-z-]*", word):
                break
            found = command.get_command(click.Context(command), word)
            if found is None:
                yield f"`tidelog {' '.join(words[: number + 1])}`: no such command"
                break
            command = found


def wrong_modules(_: Path, text: str) -> Iterator[str]:
    for token in quoted(text):
        if re.fullmatch(r"tidelog(\.\w+)+", token) and not is_module_or_name(token):
            yield f"`{token}`: no such module, nor a name in one"


def is_module_or_name(dotted: str) -> bool:
    """Whether it is a module, a name that a module defines, or a text in the code. A format or a
    field with the prefix `tidelog.` is such a text."""
    parts = dotted.split(".")[1:]
    folder = "" if parts[0] in MAPPED else "tidelog/"
    for length in range(len(parts), 0, -1):
        path = folder + "/".join(parts[:length])
        if path in tracked_folders():
            return length == len(parts) or defines(f"{path}/__init__.py", parts[length])
        if f"{path}.py" in tracked_files():
            return length == len(parts) or defines(f"{path}.py", parts[length])
    texts = (f'"{dotted}"', f'"{dotted.removeprefix("tidelog.")}"')
    return any(text in source for source in sources() for text in texts)


def defines(path: str, name: str) -> bool:
    """Whether a module has a function, a class, a constant or an import of that name."""
    if path not in tracked_files():
        return False
    names: set[str] = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return name in names


@cache
def sources() -> tuple[str, ...]:
    """The texts of the package's modules."""
    folders = tuple(f"{name}/" for name in (*MAPPED, "tidelog"))
    return tuple(
        (ROOT / name).read_text()
        for name in sorted(tracked_files())
        if name.endswith(".py") and name.startswith(folders)
    )


def wrong_lines(document: Path, text: str) -> Iterator[str]:
    """Prose that is wider than a reader's window. Tables, code and lone links may be."""
    name = document.relative_to(ROOT).as_posix()
    if name in WRITTEN_BY_PROGRAMS or not name.startswith(("docs/", "README", "CONTRIBUTING")):
        return
    for number, line in enumerate(split(text)[0].splitlines(), start=1):
        is_table = line.lstrip().startswith("|")
        if len(line) > COLUMNS_MAX and not is_table and " " in line.strip("-*> "):
            yield f"line {number}: {len(line)} columns"


def wrong_words(document: Path, text: str) -> Iterator[str]:
    """A word of the glossary whose second column is not "`Name`, `module`"."""
    if document.name != "GLOSSARY.md":
        return
    for row in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        word, code, _ = row.split(" | ")
        if code == "Code":
            continue
        named = re.fullmatch(r"`(\w+)(\.\w+)?`, `([\w/]+\.py)`", code)
        if named is None or not defines(named[3], named[1]):
            yield f"{word}: {code} is not there"
        elif named[2] and f"def {named[2][1:]}(" not in (ROOT / named[3]).read_text():
            yield f"{word}: {code} has no such method"


def wrong_names(document: Path, text: str) -> Iterator[str]:
    """A name in `CamelCase` that is nowhere in the code, in a page about the code."""
    if not document.relative_to(ROOT).as_posix().startswith(PAGES_ABOUT_CODE):
        return
    for token in quoted(text):
        if re.fullmatch(r"[A-Z]\w*[a-z]\w*(\.\w+)*", token):
            missing = [part for part in token.split(".") if part not in words_of_code()]
            if missing:
                yield f"`{token}`: no such name"


@cache
def words_of_code() -> frozenset[str]:
    """Every word in the Python files."""
    texts = ((ROOT / name).read_text() for name in tracked_files() if name.endswith(".py"))
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


CHECKS: dict[str, Check] = {
    "links": wrong_links,
    "paths": wrong_paths,
    "make targets": wrong_targets,
    "commands": wrong_commands,
    "modules": wrong_modules,
    "columns": wrong_lines,
    "glossary": wrong_words,
    "names": wrong_names,
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_documents_name_only_existing_things(check: Check) -> None:
    found = [
        f"{document.relative_to(ROOT)}: {fault}"
        for document in documents()
        for fault in check(document, document.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        ("links", "[a](CONTRIBUTING.md)", "[a](docs/NOTHING.md)"),
        ("links", "# A b, c!\n[a](#a-b-c)", "# A\n[a](#b)"),
        ("links", "# A\n# A\n[a](#a-1)", "# A\n[a](README.md#nothing)"),
        ("links", "[a](https://example.org/#b) `[a](b)`", "see [the\npage](nothing.md)"),
        ("paths", "`wal/write/writer.py` and `wal/<broker>`", "`wal/write/nothing.py`"),
        ("paths", "`tests/unit/` and `writer.py`", "`tests/nothing/`"),
        ("paths", "`state/<topic>/<partition>`", "`nothing_at_all.py`"),
        ("make targets", '`make unit PYTEST="-k nothing"`', "`make nothing`"),
        ("make targets", "```\n$ make lint types\n```", "```\n$ make lint nothing\n```"),
        ("commands", "`tidelog topics create NAME`", "`tidelog topics nothing`"),
        ("commands", "`tidelog --help`, `tidelog fsck URL`", "```\n$ tidelog nothing\n```"),
        ("modules", "`tidelog.wal.write.writer.WalWriter`", "`tidelog.wal.nothing`"),
        ("modules", "`tidelog.groups`, `tidelog.bucket`", "`tidelog.wal.write.writer.Nothing`"),
        ("columns", "| " + "wide " * 30 + "|", "wide " * 30),
        ("glossary", "| a | `Slot`, `tidelog/identifiers.py` | b |", "| a | `Slot` | b |"),
        (
            "glossary",
            "| a | `Partition.first_offset`, `broker/partitions/partitions.py` | b |",
            "| a | `Partition.nothing`, `broker/partitions/partitions.py` | b |",
        ),
        # In two parts: the whole would be a name in the code.
        ("names", "`WalWriter.flush`, `SLOT_STORED`, `Fenced`", "`Nothing" + "Here`"),
    ],
)
def test_each_check_notices_a_fault(check: str, good: str, bad: str) -> None:
    document = ROOT / DOCUMENT_OF_CHECK.get(check, "README.md")
    assert list(CHECKS[check](document, good)) == []
    assert len(list(CHECKS[check](document, bad))) == 1
