"""Tidelog's tests."""
