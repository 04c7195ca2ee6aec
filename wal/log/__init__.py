"""A partition's log as values: offsets, producers, transactions, extents."""
