"""The settings of listeners, with Kafka's names and rules."""

from __future__ import annotations

from tidelog.broker.settings.kinds import OneOf, Setting
from tidelog.broker.settings.tables.columns import ANY, STRING

_PROTOCOLS = OneOf((None, "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"))

# fmt: off
LISTENER_SETTINGS: tuple[Setting, ...] = (
    Setting("listeners", STRING, None, ANY,
        "The addresses that the broker listens on, as NAME://HOST:PORT, separated by commas. An"
        " empty host means all interfaces. Unset: one PLAINTEXT listener, at --listen.",
        kafka_default="PLAINTEXT://:9092"),
    Setting("advertised.listeners", STRING, None, ANY,
        "The addresses that clients are told, as NAME://HOST:PORT. Each client is told the address"
        " of the listener that it came by. Unset: those of `listeners`, or --advertise."),
    Setting("listener.security.protocol.map", STRING,
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL", ANY,
        "The security protocol of each listener, as NAME:PROTOCOL, separated by commas."),
    Setting("inter.broker.listener.name", STRING, None, ANY,
        "The listener by which brokers reach each other. Unset: security.inter.broker.protocol"
        " names it."),
    Setting("security.inter.broker.protocol", STRING, None, _PROTOCOLS,
        "The security protocol between brokers, which is also the name of their listener; not"
        " together with inter.broker.listener.name. Unset: PLAINTEXT.",
        kafka_default="PLAINTEXT"),
)
# fmt: on
