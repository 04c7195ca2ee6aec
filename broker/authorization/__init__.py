"""Decides which operations a principal may do on a resource."""
