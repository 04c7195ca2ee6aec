"""What a group coordinator remembers: groups, members and committed offsets."""
