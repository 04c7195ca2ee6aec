"""Broken variants of Tidelog, each of which a simulation must catch."""
