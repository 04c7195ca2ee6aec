"""The collector: finds unneeded objects and deletes them after a grace."""
