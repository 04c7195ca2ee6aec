"""Streams: micro-batches, and their published progress."""
