"""Creation rules of topics, and their view by clients."""
