"""The rules of the simulation: each judges the history that clients observed."""
