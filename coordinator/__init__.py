"""The cluster's metadata and the coordinators."""
