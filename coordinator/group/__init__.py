"""The group coordinator: membership, assignments and committed offsets of consumer groups."""
