"""Retention and log compaction: they select and rewrite the segments of a table."""
