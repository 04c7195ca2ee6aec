"""Messages about the cluster: its brokers, topics and settings."""
