"""Every proof that docs/STATUS.md names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
STATUS = ROOT / "docs" / "STATUS.md"
STATES = {"works", "partly", "not yet"}


class Line(NamedTuple):
    """A row of one of the tables."""

    capability: str
    state: str
    proofs: list[str]


def lines(text: str) -> list[Line]:
    """The rows of all tables; a row of any other shape is an error."""
    rows = []
    for line in text.splitlines():
        if not line.startswith("|") or line.startswith(("|---", "| Capability |")):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 3, f"three cells a row: {line}"
        proofs = re.findall(r"`([^`]+)`", cells[2])
        assert re.sub(r"`[^`]+`|[\s,]", "", cells[2]) == "", f"proofs in backquotes only: {line}"
        rows.append(Line(cells[0], cells[1], proofs))
    return rows


def names_of_tests(path: Path) -> set[str]:
    """Names of the tests: functions, classes (also those made of state machines), methods."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            functions = (inner for inner in node.body if isinstance(inner, ast.FunctionDef))
            names |= {node.name, *(f"{node.name}::{function.name}" for function in functions)}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if name.rpartition("::")[2].startswith(("test_", "Test"))}


def make_targets() -> set[str]:
    """Targets that `make help` lists."""
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def fault_of(proof: str) -> str | None:
    """The fault of a proof, or None if it exists: as a make target, a test file, or a test in
    one."""
    if proof.startswith("make "):
        return None if proof.split()[1] in make_targets() else "no such target in the Makefile"
    path, _, test = proof.partition("::")
    if not re.fullmatch(r"tests/(\w+/)*test_\w+\.py", path):
        return "neither a make target nor a test"
    if not (ROOT / path).is_file():
        return "no such file"
    found = names_of_tests(ROOT / path)
    if test not in found and (test or not found):
        return "no such test in the file"
    return None


def test_every_named_proof_exists() -> None:
    wrong = [
        f"{line.capability}: {proof}: {why}"
        for line in lines(STATUS.read_text())
        for proof in line.proofs
        if (why := fault_of(proof))
    ]
    assert wrong == []


def test_every_claim_has_a_proof_and_every_gap_has_none() -> None:
    for line in lines(STATUS.read_text()):
        assert line.state in STATES, line
        assert bool(line.proofs) == (line.state != "not yet"), line


def test_no_capability_stands_twice() -> None:
    capabilities = [line.capability for line in lines(STATUS.read_text())]
    assert len(capabilities) == len(set(capabilities)) > 50


def test_a_proof_that_does_not_exist_is_noticed() -> None:
    this = "tests/unit/repository/test_status.py"
    assert fault_of(this) is None
    assert fault_of(f"{this}::test_every_named_proof_exists") is None
    assert fault_of("make test") is None
    assert fault_of(f"{this}::test_nothing") is not None
    assert fault_of(f"{this}::lines") is not None
    assert fault_of("tests/unit/repository/test_nothing.py") is not None
    assert fault_of("make nothing") is not None
    assert fault_of("README.md") is not None
