"""Fetches and look-ups: from the tail in memory, from WAL objects and from segments."""
