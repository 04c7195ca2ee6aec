"""Limits and turns, by which no client keeps the others waiting."""
