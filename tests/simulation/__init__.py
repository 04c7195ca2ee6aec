"""A whole cluster in one thread: virtual time, a seeded schedule, faults, and a checked history."""
