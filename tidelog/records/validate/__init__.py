"""Validation of produced batches, and their rewriting for the topic."""
