"""kcat."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tests.compat.security.matrix.attempt import (
    REFUSED_SECONDS_MAX,
    SECONDS_MAX,
    Attempt,
    Outcome,
)


class KcatClient:
    """One process for each step."""

    name = "kcat"
    mechanisms = frozenset({"PLAIN"})

    def run(self, attempts: Sequence[Attempt]) -> list[Outcome]:
        """One after the other."""
        return [self.connect(each) if each.is_refused else _served(each) for each in attempts]

    def connect(self, attempt: Attempt) -> Outcome:
        """Ask for metadata alone; the error, if that fails."""
        done = subprocess.run(
            _command(attempt, "-L", "-m", str(REFUSED_SECONDS_MAX)),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        return Outcome(error=done.stderr if done.returncode else "")


def _command(attempt: Attempt, *arguments: str, **settings: str) -> list[str]:
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
    told = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    return ["kcat", "-b", attempt.bootstrap, *told, *arguments]


def _done(command: Sequence[str], text: str = "") -> str:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _served(attempt: Attempt) -> Outcome:
    alone, in_transaction = attempt.values
    own_id = f"{attempt.topic} {attempt.name}"
    topic = ("-t", attempt.topic)
    _done(_command(attempt, "-P", *topic), alone)
    # With a transactional id all that kcat reads is one transaction.
    settings = {"transactional.id": own_id}
    _done(_command(attempt, "-P", *topic, **settings), in_transaction)
    settings = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    member = _command(attempt, "-q", "-e", **settings)
    consumed = _done([*member, "-G", own_id, attempt.topic]).splitlines()
    return Outcome(tuple(each for each in consumed if each in attempt.values))
