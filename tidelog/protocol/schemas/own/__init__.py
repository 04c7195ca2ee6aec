"""Tidelog's own messages, which Kafka does not have."""
