"""`ssl.principal.mapping.rules`: the principal for the name in a client's certificate. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidelog.errors import InvalidConfiguration, Refused

SETTING = "ssl.principal.mapping.rules"
_DEFAULT = "DEFAULT"
_PART = r"((?:\\.|[^\\/])*)"
_RULE = re.compile(rf"\s*(?:{_DEFAULT}|RULE:{_PART}/{_PART}/([LU]?))\s*(?:,|$)")
_GROUP = re.compile(r"\\(.)|\$(\d)")


class NoRuleMatches(Refused):
    """No rule makes a principal of a certificate's name."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule. Without a pattern the whole name is the principal."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        # As in Java: $1 is a group, a backslash takes the next character literally.
        result = _GROUP.sub(
            lambda part: part[1] if part[1] else match[int(part[2])] or "", self.replacement
        )
        if self.case:
            return result.lower() if self.case == "L" else result.upper()
        return result


class PrincipalRules:
    """The rules of a listener."""

    def __init__(self, text: str) -> None:
        """Raises InvalidConfiguration."""
        self._rules = tuple(_parsed(text))

    def principal(self, name: str) -> str:
        """The principal for a distinguished name. Raises NoRuleMatches."""
        for rule in self._rules:
            found = rule.apply(name)
            if found is not None:
                return found
        raise NoRuleMatches(f"no rule of {SETTING} matches the certificate's name {name}")


def _parsed(text: str) -> list[_Rule]:
    rules = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise InvalidConfiguration(
                f"{SETTING}: {text[position:]!r} does not begin with RULE:pattern/replacement/[LU]"
                f" or {_DEFAULT}"
            )
        rules.append(_rule(match))
        position = match.end()
    return rules or [_Rule(None, "", "")]


def _rule(match: re.Match[str]) -> _Rule:
    if match[1] is None:
        return _Rule(None, "", "")
    try:
        pattern = re.compile(match[1])
    except re.error as error:
        raise InvalidConfiguration(f"{SETTING}: {match[1]!r} is no pattern: {error}") from None
    named = [int(part[2]) for part in _GROUP.finditer(match[2]) if part[2]]
    if max(named, default=0) > pattern.groups:
        raise InvalidConfiguration(
            f"{SETTING}: {match[2]!r} names group {max(named)}, and the pattern has"
            f" {pattern.groups}"
        )
    return _Rule(pattern, match[2], match[3])
