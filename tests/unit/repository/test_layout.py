"""The folders, the packaging and the import rules agree."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]
"""The folder of each package: tidelog and the folders beside it."""

CORES = (
    "tidelog.broker.network.connection",
    "tidelog.client.connection",
    "tidelog.coordinator.cluster.state.state",
    "tidelog.protocol",
    "tidelog.records",
    "tidelog.wal.log.extents",
    "tidelog.wal.log.image",
    "tidelog.wal.format.object_format",
    "tidelog.wal.log.partition_log",
    "tidelog.wal.log.producer_state",
)
"""Modules and packages that are pure: no I/O, time and chance as arguments."""
MODULES_MAX = 15


def modules() -> dict[str, Path]:
    """Every module and package of the project by its import name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = [*package.split("."), *path.relative_to(ROOT / folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def packages() -> set[str]:
    """Every folder that holds modules, by its import name."""
    return {
        name if path.name == "__init__.py" else name.rpartition(".")[0]
        for name, path in modules().items()
    }


def crowded_folders(paths: Iterable[Path]) -> dict[str, int]:
    """Folders with more than MODULES_MAX modules, and how many they have."""
    counted = Counter(path.parent for path in paths if path.name != "__init__.py")
    return {
        str(folder.relative_to(ROOT)): count
        for folder, count in counted.items()
        if count > MODULES_MAX
    }


def test_a_folder_has_at_most_fifteen_modules() -> None:
    paths = [*modules().values(), *(ROOT / "scripts").rglob("*.py")]
    # Each command has one module, which has its name.
    assert crowded_folders(paths).keys() <= {"tidelog/cli/commands"}


def test_a_crowded_folder_is_noticed() -> None:
    paths = [ROOT / "a" / f"{number}.py" for number in range(MODULES_MAX)]
    assert not crowded_folders([*paths, ROOT / "a" / "__init__.py"])
    assert crowded_folders([*paths, ROOT / "a" / "one_more.py"]) == {"a": MODULES_MAX + 1}


def test_packages_listed_for_setuptools_are_the_folders() -> None:
    assert set(SETUPTOOLS["packages"]) == packages()
    assert SETUPTOOLS["packages"] == sorted(SETUPTOOLS["packages"])


def test_every_package_but_localstack_has_an_init_module() -> None:
    # localstack/__init__.py would shadow the LocalStack distribution in a checkout.
    bare = {name for name in packages() if name not in modules()}
    assert bare <= {"tidelog.localstack"}


def test_no_module_imports_a_folder_by_its_bare_name() -> None:
    bare_names = {folder for package, folder in FOLDERS.items() if package != "tidelog"}
    offenders = []
    for top in (*FOLDERS.values(), "tests", "benchmarks", "scripts"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                else:
                    continue
                offenders += [
                    f"{path.relative_to(ROOT)}:{node.lineno}: import it as tidelog.{name}"
                    for name in names
                    if name.partition(".")[0] in bare_names
                ]
    assert offenders == []


def test_import_rules_see_every_module_of_the_mapped_folders() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "typing-links"], check=True)
    program = """
import grimp, json
graph = grimp.build_graph("tidelog", cache_dir=None)
upstream = sorted(graph.find_modules_directly_imported_by("tidelog.storage.object_store"))
print(json.dumps([sorted(graph.modules), upstream]))
"""
    output = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT / "build" / "typing",
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    seen, upstream = json.loads(output)
    assert set(seen) >= set(modules())
    assert "tidelog.errors" in upstream


def test_every_pure_core_that_exists_is_under_the_contract_of_pure_cores() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    [contract] = [c for c in contracts if c["name"].startswith("Pure cores")]
    covered = set(contract["source_modules"])
    missing = [
        core
        for core in CORES
        if core in modules() and not any(f"{core}.".startswith(f"{each}.") for each in covered)
    ]
    assert missing == [], "add to source_modules of the contract of pure cores in pyproject.toml"


def test_the_lock_satisfies_the_requirements_of_the_project() -> None:
    pinned = {}
    for group in ("test", "integration"):
        for line in (ROOT / "requirements" / f"{group}.txt").read_text().splitlines():
            if line[:1].isalnum():
                requirement = Requirement(line.removesuffix("\\"))
                [specifier] = requirement.specifier
                pinned[canonicalize_name(requirement.name)] = specifier.version
    wanted = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    for lines in PROJECT["dependency-groups"].values():
        wanted += [Requirement(line) for line in lines]
    unsatisfied = [
        str(requirement)
        for requirement in wanted
        if not requirement.specifier.contains(pinned.get(canonicalize_name(requirement.name), "0"))
    ]
    assert unsatisfied == [], "run: make lock"


def test_a_class_name_stands_once() -> None:
    """Names of the SDK and of the test kit are users' words, so other modules may use them too."""
    users = ("tidelog.sdk.", "tidelog.aio.", "tidelog.testing.")
    places: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    ours = {
        each: [module for module in found if not module.startswith(users)]
        for each, found in places.items()
    }
    assert {each: found for each, found in ours.items() if len(found) > 1} == {}
