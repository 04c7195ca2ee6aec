"""Limits and turns: no client keeps the others waiting."""
