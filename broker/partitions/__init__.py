"""The partitions that this broker leads, and the writer that appends to them."""
