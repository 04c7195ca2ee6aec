"""The records of `__consumer_offsets`, with Kafka's own keys and values."""
