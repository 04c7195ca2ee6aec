"""Conversion of record batches to table rows, and back."""
