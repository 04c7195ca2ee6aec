"""Streams: micro-batches, their progress, and what is published of it."""
