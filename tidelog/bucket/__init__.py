"""Read-only access to a bucket without a broker: topics, tables, tails, coordinators' states,
and copies of it."""
