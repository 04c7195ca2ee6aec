"""The settings of quotas, with Kafka's names and defaults."""

from __future__ import annotations

from tidelog.broker.settings.kinds import AtLeast, Setting
from tidelog.broker.settings.tables.columns import INT

# fmt: off
QUOTA_SETTINGS: tuple[Setting, ...] = (
    Setting("quota.window.num", INT, 11, AtLeast(1),
        "Samples over which the rates of clients and of connections are measured, the present one"
        " included."),
    Setting("quota.window.size.seconds", INT, 1, AtLeast(1),
        "The time of one sample. A client over its request_percentage waits no longer than this."),
    Setting("controller.quota.window.num", INT, 11, AtLeast(1),
        "Samples whose controller mutations a client may make at once."),
    Setting("controller.quota.window.size.seconds", INT, 1, AtLeast(1),
        "The time of one sample of controller mutations."),
    Setting("quota.clients.max", INT, 100_000, AtLeast(1),
        "Clients, by user and client id, whose use of quotas a broker remembers. Beyond it, the use"
        " of the clients that were idle for longest is forgotten."),
)
# fmt: on
