"""The partitions that this broker leads, and the one way to write into them."""
