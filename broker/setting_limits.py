"""The broker settings that limit what clients may ask for and what they may leave behind. Kafka has
none of them."""

from __future__ import annotations

from tidelog.broker.setting_kinds import AtLeast, Kind, Setting
from tidelog.coordinator.patterns import PATTERN_LENGTH_MAX


def _limit(name: str, kind: Kind, default: int, low: int, doc: str) -> Setting:
    return Setting(name=name, kind=kind, default=default, valid=AtLeast(low), doc=doc)


LIMIT_SETTINGS: tuple[Setting, ...] = (
    _limit(
        "regex.length.max",
        Kind.INT,
        PATTERN_LENGTH_MAX,
        1,
        "Characters of a regular expression in a consumer group's subscription or in"
        " ListTransactions; a longer one is refused (INVALID_REGULAR_EXPRESSION).",
    ),
)
