"""Group commit: slots are filled, uploaded and acknowledged in order; checkpoints."""
