"""Metrics and logs of a broker."""
