"""The cluster's state, its metadata log, leases and tenures."""
