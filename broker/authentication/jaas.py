"""`sasl.jaas.config`: the name and the password by which a broker authenticates with others. Pure.

The grammar is Kafka's: `MODULE FLAG NAME="value" ...;`, with comments of Java.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.security import Login
from tidelog.errors import InvalidConfiguration

_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_OPTIONS: Final = frozenset({"username", "password"})
_TOKEN: Final = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/
    | (?P<word>[\w.$\-]+)
    | "(?P<double>(?:[^"\\\n]|\\[^\n])*)" | '(?P<single>(?:[^'\\\n]|\\[^\n])*)'
    | (?P<sign>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[0-7]{1,2}|.)")
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str = field(repr=False)

    @property
    def is_text(self) -> bool:
        return self.kind != "sign"

    def is_sign(self, sign: str) -> bool:
        return self.kind == "sign" and self.text == sign


def parse_login(setting: str, text: str, mechanism: str) -> Login:
    """The login in a setting. Raises InvalidConfiguration, which repeats no part of the text."""
    tokens = _tokens(setting, text)
    if len(tokens) < 2 or not tokens[0].is_text or tokens[1].text.lower() not in _FLAGS:
        raise _malformed(setting, "it does not begin with a login module and `required`", mechanism)
    if tokens[0].text != _MODULES[mechanism]:
        raise _malformed(setting, "its login module is not that of the mechanism", mechanism)
    options: dict[str, str] = {}
    rest = tokens[2:]
    while rest and not rest[0].is_sign(";"):
        if len(rest) < 3 or not (rest[0].is_text and rest[1].is_sign("=") and rest[2].is_text):
            raise _malformed(setting, 'an option is not NAME="value"', mechanism)
        options[rest[0].text] = rest[2].text
        rest = rest[3:]
    if not rest:
        raise _malformed(setting, "it does not end with a semicolon", mechanism)
    if len(rest) > 1:
        raise _malformed(setting, "it has more than one login module", mechanism)
    if options.keys() - _OPTIONS:
        # A misquoted password may look like an option.
        raise _malformed(setting, "it has options other than username and password", mechanism)
    for name in sorted(_OPTIONS, reverse=True):
        if not options.get(name):
            raise _malformed(setting, f"it has no {name}", mechanism)
    return Login(options["username"], options["password"])


def _tokens(setting: str, text: str) -> list[_Token]:
    found = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidConfiguration(
                f"{setting} = [hidden]: the character at position {position} is out of place, or a"
                " quotation mark is not closed"
            )
        position = match.end()
        kind = match.lastgroup
        if kind in ("double", "single"):
            found.append(_Token("quoted", _ESCAPE.sub(_unescaped, match[kind])))
        elif kind is not None:
            found.append(_Token(kind, match[kind]))
    return found


def _unescaped(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPED.get(escaped, escaped)


def _malformed(setting: str, why: str, mechanism: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f'{setting} = [hidden]: {why}; write {_MODULES[mechanism]} required username="..."'
        ' password="...";'
    )
