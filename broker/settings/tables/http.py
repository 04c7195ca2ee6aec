"""The settings of the HTTP server: /healthz, /readyz and /metrics. They are Tidelog's own."""

from __future__ import annotations

import re

from tidelog.broker.settings.kinds import AtLeast, Matching, Setting
from tidelog.broker.settings.tables.columns import ANY, INT, STRING
from tidelog.broker.settings.tables.security import PASSWORD

_TOKEN = re.compile(r"|[A-Za-z0-9._~+/-]{16,}=*")

# fmt: off
HTTP_SETTINGS: tuple[Setting, ...] = (
    Setting("http.ssl.keystore.location", STRING, None, ANY,
        "A PEM file with the private key and the certificate chain of the HTTP server, which then"
        " speaks HTTPS alone. The broker reads it again when it changes, and on SIGHUP."
        " ssl.enabled.protocols and ssl.cipher.suites hold here too."),
    Setting("http.ssl.key.password", PASSWORD, None, ANY,
        "The password of the HTTP server's private key, if it is encrypted."),
    Setting("http.bearer.token", PASSWORD, "",
        Matching(_TOKEN, "empty, or at least 16 of A-Z a-z 0-9 . _ ~ + / -, and = at the end"),
        "The token that clients of /metrics send (`Authorization: Bearer TOKEN`). Without it"
        " /healthz and /readyz tell only the verdict. Empty: no token is needed."),
    Setting("http.connections.max", INT, 64, AtLeast(2),
        "Connections that the HTTP server serves at a time. At the limit, a new one replaces the"
        " one that has waited longest without a whole request."),
    Setting("http.request.timeout.ms", INT, 10_000, AtLeast(1),
        "How long an HTTP client may take for its TLS handshake, its request, and to take the"
        " answer."),
    Setting("metrics.offsets.max", INT, 2_000, AtLeast(0),
        "How many committed offsets of groups, and how many ends of partitions, /metrics shows."
        " tidelog_offsets_left_out counts the others."),
)
# fmt: on
