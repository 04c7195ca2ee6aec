"""Reads a bucket without a broker: topics, tables, tails and coordinators' states; copies it."""
