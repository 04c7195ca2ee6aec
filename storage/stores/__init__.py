"""Object stores: S3, files, memory, fsspec; with retries, timeouts, metrics and faults.

`location.py` opens a store by its URL and puts the wrappers around it. `probe.py` is the check at
start-up.
"""
