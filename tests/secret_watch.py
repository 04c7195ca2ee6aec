"""A pytest plugin: a test fails if its output contains a kept secret (`tests.kept_secrets`).

It looks at captured output, log records, the output of commands, and the output and the arguments
of started processes. A failure names the place and never the secret.
"""

from __future__ import annotations

import logging
import os
import subprocess
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from tests.kept_secrets import KEPT, keep_verifiers_in


class SecretWatch:
    """Looks at texts, and remembers the places of secrets until the next report."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._processes: list[_Started] = []

    def look(self, text: str | bytes | None, place: str, *, are_arguments: bool = False) -> None:
        """Look for secrets in a text."""
        if not text or not KEPT:
            return
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        found = KEPT.found_in(text, are_arguments=are_arguments)
        self._found += [f"{secret} is in {place}" for secret in found]

    def started(self, process: subprocess.Popen[Any], name: str, files: Sequence[_Output]) -> None:
        """Look at the files of a process from now on, and at the arguments of its children."""
        self._processes.append(_Started(weakref.ref(process), name, files))

    def look_at_processes(self) -> None:
        """Look at the output of processes since the last look, and at their descendants."""
        for each in self._processes:
            process = each.running()
            for output in each.outputs:
                told = output.written(whole_lines=process is not None)
                self.look(told, f"{output.place} of {each.name}")
            if process is not None:
                for arguments in _arguments_below(process.pid):
                    place = f"the arguments of a process below {each.name}"
                    self.look(arguments, place, are_arguments=True)
        self._processes = [each for each in self._processes if each.running() is not None]

    def judge(self, report: pytest.TestReport) -> None:
        """Fail the report if a secret was found."""
        for name, content in report.sections:
            if name.endswith(f" {report.when}"):
                self.look(content, name.lower())
        if not self._found:
            return
        found = "\n".join(dict.fromkeys(self._found))
        self._found.clear()
        report.sections = [(name, KEPT.hidden(content)) for name, content in report.sections]
        # The representation of an earlier failure may show the secret as well.
        before = f"\n\n{KEPT.hidden(report.longreprtext)}" if report.failed else ""
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} tells a secret:\n{found}{before}"


WATCH: Final = SecretWatch()


class _Output:
    """A file to which a process writes."""

    def __init__(self, path: Path, place: str) -> None:
        self._path = path
        self._position = path.stat().st_size
        self.place = place

    def written(self, *, whole_lines: bool) -> bytes:
        """The bytes since the last call, without an unfinished last line."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                found = file.read()
        except OSError:
            return b""
        if whole_lines:
            found = found[: found.rfind(b"\n") + 1]
        self._position += len(found)
        return found


class _Started:
    """A process that a test has started."""

    def __init__(
        self,
        process: weakref.ref[subprocess.Popen[Any]],
        name: str,
        outputs: Sequence[_Output],
    ) -> None:
        self._process = process
        self.name = name
        self.outputs = outputs

    def running(self) -> subprocess.Popen[Any] | None:
        """The process, unless it was found ended or forgotten."""
        process = self._process()
        return None if process is None or process.returncode is not None else process


class _Pipe:
    """The end of a pipe that a test reads."""

    def __init__(self, stream: Any, place: str) -> None:
        self._stream = stream
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _seen(self, text: Any) -> Any:
        WATCH.look(text, self._place)
        return text

    def read(self, *arguments: int) -> Any:
        return self._seen(self._stream.read(*arguments))

    def readline(self, *arguments: int) -> Any:
        return self._seen(self._stream.readline(*arguments))

    def readlines(self, *arguments: int) -> Any:
        return [self._seen(line) for line in self._stream.readlines(*arguments)]

    def __iter__(self) -> Iterator[Any]:
        return map(self._seen, self._stream)

    def __next__(self) -> Any:
        return self._seen(next(self._stream))

    def __enter__(self) -> _Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def _arguments_below(pid: int) -> Iterator[bytes]:
    """The arguments of all descendants of a process, if the system shows them.

    One that ends meanwhile does not hide the others.
    """
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                with suppress(OSError):
                    yield Path(f"/proc/{child}/cmdline").read_bytes()
                yield from _arguments_below(int(child))


def _watch_processes(patch: pytest.MonkeyPatch) -> None:
    start, communicate = subprocess.Popen.__init__, subprocess.Popen.communicate

    @wraps(start)
    def watched_start(self: Any, args: Any, *more: Any, **options: Any) -> None:
        words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        texts = [os.fsdecode(each) for each in words]
        name = Path(texts[0].split(" ")[0]).name
        WATCH.look("\0".join(texts), f"the arguments of {name}", are_arguments=True)
        files = []
        for stream in ("stdout", "stderr"):
            path = getattr(options.get(stream), "name", None)
            if isinstance(path, str) and Path(path).is_file():
                files.append(_Output(Path(path), stream))
        start(self, args, *more, **options)
        for stream in ("stdout", "stderr"):
            if (pipe := getattr(self, stream)) is not None:
                setattr(self, stream, _Pipe(pipe, f"{stream} of {name}"))
        for text in texts:
            if text.startswith("file://"):
                keep_verifiers_in(Path(text.removeprefix("file://")))
        WATCH.started(self, name, files)

    @wraps(communicate)
    def watched_communicate(self: Any, *arguments: Any, **options: Any) -> Any:
        told = communicate(self, *arguments, **options)
        for text in told:
            WATCH.look(text, "the output of a process to a pipe")
        return told

    patch.setattr(subprocess.Popen, "__init__", watched_start)
    patch.setattr(subprocess.Popen, "communicate", watched_communicate)


def _watch_logging(patch: pytest.MonkeyPatch) -> None:
    handle, formatter = logging.Logger.handle, logging.Formatter()

    @wraps(handle)
    def watched_handle(self: logging.Logger, record: logging.LogRecord) -> None:
        if KEPT:
            texts = [record.getMessage(), *map(str, record.__dict__.values())]
            if record.exc_info:
                texts.append(formatter.formatException(record.exc_info))
            WATCH.look("\0".join(texts), f"a record of the logger {record.name}")
        handle(self, record)

    patch.setattr(logging.Logger, "handle", watched_handle)


def _watch_output(patch: pytest.MonkeyPatch) -> None:
    read, invoke = pytest.CaptureFixture.readouterr, CliRunner.invoke

    @wraps(read)
    def watched_read(self: pytest.CaptureFixture[Any]) -> Any:
        told = read(self)
        for text in told:
            WATCH.look(text, "captured output")
        return told

    @wraps(invoke)
    def watched_invoke(self: CliRunner, *arguments: Any, **options: Any) -> Result:
        result = invoke(self, *arguments, **options)
        WATCH.look(result.output, "the output of a command")
        if result.exception is not None:
            WATCH.look(str(result.exception), "the error of a command")
        return result

    patch.setattr(pytest.CaptureFixture, "readouterr", watched_read)
    patch.setattr(CliRunner, "invoke", watched_invoke)


def pytest_configure(config: pytest.Config) -> None:
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    watches: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
        _watch_processes,
        _watch_logging,
        _watch_output,
    )
    for watch in watches:
        watch(patch)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    with KEPT.of_test():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    with KEPT.of_fixture(is_lasting=fixturedef.scope != "function"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    WATCH.look_at_processes()
    WATCH.judge(report)
    return report
