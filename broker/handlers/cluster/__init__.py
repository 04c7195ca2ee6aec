"""Handlers of requests about brokers, topics and settings."""
