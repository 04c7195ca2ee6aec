"""Retention and log compaction of the topics' tables.

The rules of removal are in `storage/clean/`. `table_path.py` assembles the whole path from the
WAL into tables: rolls, retention and compaction.
"""
