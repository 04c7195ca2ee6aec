"""Message schemas, one module an API family."""
