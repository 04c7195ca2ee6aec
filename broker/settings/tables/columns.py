"""The vocabulary of the tables: types, units, and settings without an effect."""

from __future__ import annotations

from tidelog.broker.settings.kinds import Anything, Effect, SettingType

BOOLEAN = SettingType.BOOLEAN
STRING = SettingType.STRING
INT = SettingType.INT
SHORT = SettingType.SHORT
LONG = SettingType.LONG
DOUBLE = SettingType.DOUBLE
LIST = SettingType.LIST
ANY = Anything()
NONE = Effect.NONE
"""Operators of Kafka expect the setting, but Tidelog lacks its mechanism."""

MIB = 1024 * 1024
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
