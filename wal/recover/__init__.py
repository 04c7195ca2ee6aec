"""Seals a dead incarnation's WAL, and rebuilds partitions from the bucket."""
