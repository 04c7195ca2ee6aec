"""Brokers come, show that they live, are fenced, and are succeeded."""
