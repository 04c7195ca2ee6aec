"""Producers' batches on their way into partitions: produced ones and adopted ones."""
