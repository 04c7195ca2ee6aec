"""The vocabulary of security that clients and brokers share. Pure."""
