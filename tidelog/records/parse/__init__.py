"""Parsers for the records of many batches, with numpy."""
