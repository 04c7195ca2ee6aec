"""A topic's table: a log of commits and checkpoints that Delta Lake readers understand."""
