"""Handlers of requests that write and read records."""
