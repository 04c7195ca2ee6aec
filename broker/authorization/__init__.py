"""Decides which principal may do what with which resource."""
