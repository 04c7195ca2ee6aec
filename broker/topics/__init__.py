"""Creation rules of topics, placement of their partitions, and their view by clients."""
