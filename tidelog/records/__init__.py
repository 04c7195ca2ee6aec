"""Kafka record batches: structure, validation, compression, conversion."""
