"""A transactional producer, the commit of a sink, and an administrator's requests."""
