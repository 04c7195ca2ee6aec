"""The measured servers, the clients that load them, and the counts of both."""
