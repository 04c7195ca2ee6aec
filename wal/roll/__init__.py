"""Decides which records go into tables and how fast, and converts batches to segment rows."""
