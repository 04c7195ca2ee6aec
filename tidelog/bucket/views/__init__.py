"""Topics and coordinators' states, read from the bucket alone."""
