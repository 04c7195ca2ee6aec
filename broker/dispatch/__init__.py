"""The path from a request's bytes to its handler, and from the handler's answer to bytes."""
