"""Assigns partitions to the members of a consumer group (KIP-848)."""
