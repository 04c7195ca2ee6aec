"""The cluster's state: the sum of the metadata log's records."""
