"""Moves decided records from the WAL into the topics' tables."""
