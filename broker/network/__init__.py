"""Sockets: the Kafka listener, its connections, and HTTP for health and metrics."""
