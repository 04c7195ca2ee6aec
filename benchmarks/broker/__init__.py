"""Measures the broker: produce, consume, transactions, starts, and slow stores."""
