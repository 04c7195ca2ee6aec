"""Quotas of clients: limits, rates, and the time that a client has to wait."""
