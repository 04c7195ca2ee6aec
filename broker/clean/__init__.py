"""Retention and log compaction of the topics' tables."""
