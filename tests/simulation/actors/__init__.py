"""Clients and readers that act in a simulation."""
