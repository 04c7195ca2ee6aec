"""Fetches and look-ups: from the tail in memory, from WAL objects and from segments.

`read_path.py` assembles them. `metrics.py` has their Prometheus families.
"""
