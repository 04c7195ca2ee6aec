"""Several brokers on one bucket: failover, hand-over, openings, balance, and their costs."""
