"""Metrics and logs of a broker.

`metrics.py` has the broker's own counters, `families.py` the store's. Families of a part lie
beside it: `broker/read/metrics.py`, `broker/roll/metrics.py`, `broker/clean/metrics.py`.
"""
