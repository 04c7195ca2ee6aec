"""Finds objects that nothing needs any more, and deletes them after a grace."""
