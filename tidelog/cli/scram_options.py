"""SCRAM credentials on the command line, in the words of Kafka's tools."""

from __future__ import annotations

import re
from typing import NamedTuple

import click

from tidelog.entropy import SystemEntropy
from tidelog.errors import InvalidConfiguration
from tidelog.references import resolved
from tidelog.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    Verifier,
    salted_password,
    verifier,
)

_FORM = re.compile(r"(SCRAM-SHA-(?:256|512))=\[(.*)\]", re.DOTALL)
_PART = re.compile(r'(name|password|iterations)=("(?:[^"\\]|\\.)*"|[^,]*)(?:,|$)', re.DOTALL)


class NewCredential(NamedTuple):
    """A user with a password, as an operator gives them."""

    user: str
    mechanism: ScramMechanism
    password: str
    iterations: int = ITERATIONS_MIN

    def __repr__(self) -> str:
        """Without the password."""
        return f"NewCredential({self.user!r}, {self.mechanism.title})"

    def verifier(self, salt: bytes) -> Verifier:
        """The part of the credential that a server keeps."""
        salted = salted_password(self.mechanism, self.password, salt, self.iterations)
        return verifier(self.mechanism, salted, salt, self.iterations)


def new_salt() -> bytes:
    """A salt of 32 bytes."""
    entropy = SystemEntropy()
    return entropy.uuid().bytes + entropy.uuid().bytes


class ScramOption(click.ParamType[NewCredential]):
    """`SCRAM-SHA-256=[name=alice,password=${file:PATH:KEY}]`, with `iterations=4096` if wanted.

    The password may also be `${env:NAME}`, or itself, which other processes can see.
    """

    name = "SCRAM-SHA-256=[name=USER,password=PASSWORD]"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> NewCredential:
        """Messages never repeat the text, which holds a password."""
        if isinstance(value, NewCredential):
            return value
        form = _FORM.fullmatch(str(value))
        if form is None:
            self.fail(f"it must have the form {self.name}", param, ctx)
        parts: dict[str, str] = {}
        position = 0
        while position < len(form[2]):
            part = _PART.match(form[2], position)
            if part is None or part[1] in parts:
                self.fail(f"it must have the form {self.name}", param, ctx)
            text = part[2]
            if text.startswith('"'):
                text = re.sub(r"\\(.)", r"\1", text[1:-1])
            parts[part[1]] = text
            position = part.end()
        if not parts.get("name") or not parts.get("password"):
            self.fail("it must tell a name and a password", param, ctx)
        iterations = parts.get("iterations", str(ITERATIONS_MIN))
        if not iterations.isdigit() or not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
            self.fail(f"iterations must be {ITERATIONS_MIN} to {ITERATIONS_MAX}", param, ctx)
        try:
            password = resolved(parts["password"])
        except InvalidConfiguration as error:
            self.fail(str(error), param, ctx)
        mechanism = ScramMechanism.named(form[1])
        return NewCredential(parts["name"], mechanism, password, int(iterations))
