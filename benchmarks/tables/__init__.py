"""Measures tables: rolls, reads of segments, and Spark."""
