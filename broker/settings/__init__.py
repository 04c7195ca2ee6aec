"""Kafka's settings and Tidelog's own: names, types, defaults, and their effective values."""
