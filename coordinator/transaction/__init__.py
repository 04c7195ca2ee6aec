"""The transaction coordinator: who may write under a transactional id, and how transactions end."""
