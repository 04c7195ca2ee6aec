"""Installed from a clone, from a wheel or editable, Tidelog is the same and works from anywhere."""

from __future__ import annotations

import json
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.wheels import ROOT, build_wheel, copy_clone, run

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["setuptools"]["packages"]
FOLDERS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]

IMPORT_ALL = f"""
import importlib, json, pathlib
paths = []
for name in {PACKAGES!r}:
    module = importlib.import_module(name)
    paths.append(str(pathlib.Path(next(iter(module.__path__))).resolve()))
import tidelog.storage.object_store, tidelog.localstack.broker_process
paths.append(tidelog.storage.object_store.__file__)
print(json.dumps(paths))
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_clone(tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(clone, tmp_path_factory.mktemp("wheel"))


def test_a_wheel_holds_every_module_of_the_folders_and_nothing_else(
    clone: Path, wheel: Path
) -> None:
    expected = {"tidelog/py.typed"}
    for package, folder in FOLDERS.items():
        for path in (clone / folder).rglob("*.py"):
            expected.add(str(Path(*package.split("."), path.relative_to(clone / folder))))
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    assert {name for name in files if ".dist-info/" not in name} == expected
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in files)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and its requirements, installed as any user would."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[broker]", cwd=folder)
    return python


def check(python: Path, cwd: Path) -> list[Path]:
    """Import every package from `cwd`, and run the command. Returns where the modules were
    found."""
    paths = json.loads(run(python, "-c", IMPORT_ALL, cwd=cwd))
    version = PROJECT["project"]["version"]
    assert version in run(python.parent / "tidelog", "version", cwd=cwd)
    return [Path(path) for path in paths]


@pytest.mark.slow
def test_a_wheel_works_in_a_fresh_environment(python: Path, tmp_path: Path) -> None:
    environment = python.parent.parent
    assert all(path.is_relative_to(environment) for path in check(python, tmp_path))


@pytest.mark.slow
def test_heavy_parts_come_only_with_their_extras(python: Path, tmp_path: Path) -> None:
    heavy = ["moto", "pandas", "polars", "duckdb", "seaweedfs", "pyspark"]
    program = f"import importlib.util as u; print([n for n in {heavy!r} if u.find_spec(n)])"
    assert run(python, "-c", program, cwd=tmp_path).strip() == "[]"
    assert set(PROJECT["project"]["optional-dependencies"]) == {
        *("broker", "localstack", "demo", "spark"),
        *("duckdb", "pandas", "polars"),
    }


@pytest.mark.slow
def test_a_clone_can_be_installed(python: Path, clone: Path, tmp_path: Path) -> None:
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--force-reinstall",
        "--no-deps",
        clone,
        cwd=clone,
    )
    environment = python.parent.parent
    assert all(path.is_relative_to(environment) for path in check(python, tmp_path))


@pytest.mark.slow
def test_a_clone_can_be_installed_editable(python: Path, clone: Path, tmp_path: Path) -> None:
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", clone, cwd=clone)
    assert all(path.is_relative_to(clone) for path in check(python, tmp_path))
