"""What retention and log compaction remove from tables."""
