"""Which member of a consumer group gets which partitions (KIP-848)."""
