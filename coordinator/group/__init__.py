"""Consumer groups: membership, generations and committed offsets (the classic protocol)."""
