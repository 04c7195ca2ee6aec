"""A topic's table: a log of commits and their checkpoints, which Delta Lake's readers read."""
