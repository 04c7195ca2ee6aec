"""A consumer group's member, and an administrator's requests about groups."""
