"""A test that prints a secret anywhere fails. The failure does not repeat the secret."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kept_secrets import KeptSecrets, keep

CHECKOUT = Path(__file__).parents[3]
LEAKING = '''
import logging, subprocess, sys
from pathlib import Path
import click, pytest
from click.testing import CliRunner
from tests.kept_secrets import keep

SECRET = keep("-".join(["a", "kept", "secret"]), "the password of alice")
SAY = ["sh", "-c", 'printf "%s\\\\n" "$SAID"']
SPEAKING = {"PATH": "/usr/bin:/bin", "SAID": f"it is {SECRET}"}


@pytest.fixture
def speaking_fixture():
    print(SECRET)


@pytest.fixture(scope="session")
def session_fixture():
    return keep("kept by a session", "the password of bob")


@pytest.fixture
def parting(tmp_path):
    yield
    with (tmp_path / "log").open("wb") as log:
        subprocess.Popen(SAY, env=SPEAKING, stdout=log).wait()


def test_stdout():
    print("before", SECRET, "after")


def test_stderr():
    print(SECRET, file=sys.stderr)


def test_descriptor():
    subprocess.Popen(SAY, env=SPEAKING).wait()


def test_setup(speaking_fixture): ...


def test_teardown(parting): ...


def test_read_output(capsys):
    print(SECRET)
    capsys.readouterr()


def test_message(caplog):
    logging.getLogger("tidelog.x").warning("it is %s", SECRET)


def test_field():
    logging.getLogger("tidelog.x").warning("a message", extra={"login": {"password": SECRET}})


def test_traceback():
    try:
        raise ValueError(SECRET)
    except ValueError:
        logging.getLogger("tidelog.x").exception("failed")


def test_pipe():
    assert subprocess.run(SAY, env=SPEAKING, capture_output=True, check=True).stdout


def test_line_of_a_pipe():
    with subprocess.Popen(SAY, env=SPEAKING, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline()


def test_file(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        subprocess.Popen(SAY, env=SPEAKING, stderr=subprocess.STDOUT, stdout=log).wait()


def test_arguments():
    subprocess.Popen(["true", f"--password={SECRET}"]).wait()


def test_arguments_below(request):
    inner = ["bash", "-c", 'exec -a "$0-$SAID" sleep 60']
    outer = [sys.executable, "-c", f"import subprocess; subprocess.run({inner!r})"]
    process = subprocess.Popen(outer, env=SPEAKING, start_new_session=True)
    request.addfinalizer(lambda: (__import__("os").killpg(process.pid, 9), process.wait()))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not any(
        SECRET.encode() in Path(f"/proc/{child}/cmdline").read_bytes()
        for child in children.read_text().split()
    ):
        pass


def test_command():
    CliRunner().invoke(click.Command("speak", callback=lambda: print(SECRET)))


def test_error_of_a_command():
    def fail():
        raise ValueError(SECRET)

    CliRunner().invoke(click.Command("fail", callback=fail))


def test_verifier(tmp_path):
    folder = tmp_path / "cluster" / "credentials"
    folder.mkdir(parents=True)
    (folder / "v").write_text('{"users": [{"stored_key": "c3RvcmVkIGtleQ=="}]}')
    with (tmp_path / "log").open("wb") as log:
        said = {**SPEAKING, "SAID": "verifier c3RvcmVkIGtleQ=="}
        subprocess.Popen([*SAY, f"file://{tmp_path}"], env=said, stdout=log).wait()


def test_failure():
    print("spoken:", SECRET)
    assert SECRET == "something else"


def test_own_secret(session_fixture):
    keep("kept by one test", "another password")


def test_discreet():
    """The secrets of another test are forgotten, except lasting ones."""
    print("kept by one test")
    logging.getLogger("tidelog.x").warning("nothing")
    subprocess.run(["true"], check=True)


def test_of_the_session():
    print("kept by a session")
'''
DISCREET = {"test_own_secret", "test_discreet"}


def test_a_test_that_prints_a_secret_fails_without_a_repetition(tmp_path: Path) -> None:
    (tmp_path / "test_leaks.py").write_text(LEAKING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.secret_watch", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "no:tidelog", "-rA", "-v", "--tb=short", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    told = done.stdout + done.stderr
    assert "a-kept-secret" not in told
    verdicts = dict.fromkeys(re.findall(r"def (test_\w+)", LEAKING), "")
    for verdict, name in re.findall(r"^(PASSED|FAILED|ERROR) test_leaks.py::(\w+)", told, re.M):
        verdicts[name] = verdict if verdicts[name] != "ERROR" else "ERROR"
    passed = {name for name, verdict in verdicts.items() if verdict == "PASSED"}
    assert passed == DISCREET, told
    assert verdicts["test_setup"] == verdicts["test_teardown"] == "ERROR"
    for place in (
        "test_leaks.py::test_stdout tells a secret:\nthe password of alice is in captured stdout",
        "the password of alice is in captured stderr call",
        "the password of alice is in captured output",
        "the password of alice is in a record of the logger tidelog.x",
        "the password of alice is in the output of a process to a pipe",
        "the password of alice is in stdout of sh",
        "the password of alice is in the arguments of true",
        "the password of alice is in the arguments of a process below python",
        "the password of alice is in the output of a command",
        "the password of alice is in the error of a command",
        "a verifier in the bucket is in stdout of sh",
        "the password of bob is in captured stdout",
    ):
        assert place in told, (place, told)


def test_a_secret_that_could_be_a_word_is_refused() -> None:
    with pytest.raises(ValueError, match="the password of alice is shorter than 8"):
        KeptSecrets().keep("secret", "the password of alice")


def test_the_secret_watch_runs_beside_these_tests(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.has_plugin("tests.secret_watch")
    assert keep("nobody says this", "a password") == "nobody says this"
