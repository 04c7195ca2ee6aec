"""Checks of a store, of the cluster in it, and of this machine. They change nothing."""
