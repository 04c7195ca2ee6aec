"""Handlers of requests about consumer groups and their offsets."""
