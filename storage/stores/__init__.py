"""Object stores: S3, files, memory, fsspec; with retries, timeouts, metrics and faults."""
