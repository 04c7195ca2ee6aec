"""kcat."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from tempfile import NamedTemporaryFile

from tests.compat.security.matrix.attempt import (
    REFUSED_SECONDS_MAX,
    SECONDS_MAX,
    Attempt,
    Outcome,
)


class KcatClient:
    """Runs one process of kcat for each step."""

    name = "kcat"
    mechanisms = frozenset({"PLAIN"})

    def run(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """Run one attempt after the other."""
        return [self.connect(each) if each.is_refused else _served(each) for each in attempts]

    def connect(self, attempt: Attempt) -> Outcome:
        """Ask only for metadata. Returns the error, if kcat fails."""
        done = _run(attempt, "-L", "-m", str(REFUSED_SECONDS_MAX))
        return Outcome(error=done.stderr if done.returncode else "")


def _run(
    attempt: Attempt, *arguments: str, text: str = "", **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run kcat with its settings in a file, since a list of processes would show arguments."""
    settings |= {
        "security.protocol": "SASL_SSL" if attempt.mechanism else "SSL",
        "ssl.ca.location": attempt.authority,
    }
    if attempt.certificate:
        settings["ssl.certificate.location"] = settings["ssl.key.location"] = attempt.certificate
    if attempt.mechanism:
        settings["sasl.mechanism"] = attempt.mechanism
        settings["sasl.username"] = attempt.username
        settings["sasl.password"] = attempt.password
    with NamedTemporaryFile("w", suffix=".conf") as file:
        file.writelines(f"{name}={value}\n" for name, value in settings.items())
        file.flush()
        return subprocess.run(
            ["kcat", "-F", file.name, "-b", attempt.bootstrap, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )


def _output(attempt: Attempt, *arguments: str, text: str = "", **settings: str) -> str:
    done = _run(attempt, *arguments, text=text, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _served(attempt: Attempt) -> Outcome:
    alone, in_transaction = attempt.values
    own_id = f"{attempt.topic} {attempt.name}"
    topic = ("-t", attempt.topic)
    _output(attempt, "-P", *topic, text=alone)
    # With a transactional id, kcat puts all its input into one transaction.
    _output(attempt, "-P", *topic, text=in_transaction, **{"transactional.id": own_id})
    settings = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumed = _output(attempt, "-q", "-e", "-G", own_id, attempt.topic, **settings).splitlines()
    return Outcome(tuple(each for each in consumed if each in attempt.values))
