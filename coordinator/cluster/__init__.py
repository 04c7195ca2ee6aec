"""The cluster's state, its metadata log, leases and tenures.

A new fact is a record in `records/` and a transition in `state/` (both pure). `log/` reads and
writes the store. `membership/` registers brokers, keeps leases and takes over.
"""
