"""Reads of WAL objects: planned, shared, cached within a budget."""
