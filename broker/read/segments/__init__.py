"""Reads of segments: row groups as record batches, footers, and look-ups by time."""
