"""The Kafka protocol server.

The modules here are one incarnation's life: `startup.py` assembles a broker, `broker.py` runs it,
`maintenance.py` has its background tasks, and `shutdown.py` ends it. A change of one subject
belongs in a room:

- a request: `network/` (sockets), `dispatch/` (order, routes), `handlers/` (answers);
- records: `append/`, `read/`, `partitions/`;
- tables: `roll/` (into them), `tables/` (open ones), `clean/` (retention, compaction);
- deletion of objects: `collect/`; groups and transactions: `coordinate/`; topics: `topics/`;
- limits: `fairness/`; settings: `settings/`; metrics and logs: `telemetry/`.
"""
