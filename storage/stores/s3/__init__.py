"""S3 and its kind: requests, addresses, errors, and the set-up of buckets."""
