"""Fetches and lookups: from the tail in memory, from WAL objects and from segments."""
