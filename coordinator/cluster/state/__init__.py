"""The cluster's state: what the records of the metadata log add up to."""
