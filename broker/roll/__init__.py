"""Moves decided records from the WAL into the topics' tables.

This room acts. `wal/roll/` decides which records go, and how fast. `storage/segment/` writes the
file.
"""
