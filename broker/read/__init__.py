"""Fetches and look-ups: from the tail in memory, from WAL objects and from segments.

`read_path.py` assembles them. `layer_metrics.py` also has the Prometheus families of the layers
below the broker: the store, the WAL and the snapshots.
"""
