"""The append path of producers' batches: produced batches and adopted batches.

`write_path.py` assembles it with the WAL's writer. The writer itself is in `wal/write/`.
"""
