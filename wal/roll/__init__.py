"""Which records go into tables, how fast, and how batches become a segment's rows."""
