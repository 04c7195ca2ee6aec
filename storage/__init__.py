"""Objects, the stores that hold them, and numbered sequences of them.

`object_store.py` is the contract that each store in `stores/` keeps. `segment/` writes and reads
Parquet files, `table/` keeps a topic's table log, `clean/` decides what leaves a table.
"""
