"""The state of a group coordinator: groups, members and committed offsets."""
