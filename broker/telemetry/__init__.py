"""Metrics and logs of a broker.

`metrics.py` has the broker's own counters. Families of a part lie beside it:
`broker/read/layer_metrics.py`, `broker/roll/metrics.py`, `broker/clean/metrics.py`.
"""
