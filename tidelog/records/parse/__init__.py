"""Records of many batches, parsed with numpy."""
