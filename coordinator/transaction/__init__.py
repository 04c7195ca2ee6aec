"""The transaction coordinator: the producers of transactional ids, and their transactions' ends."""
