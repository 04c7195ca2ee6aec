"""The cluster's metadata and the coordinators.

`cluster/` has the metadata log and the cluster's state. `group/` and `transaction/` have the
coordinators' decisions. The modules here serve both coordinators: the runtime that applies their
decisions (`runtime.py`), snapshots of their states, timers, and the codec of their logs.
"""
