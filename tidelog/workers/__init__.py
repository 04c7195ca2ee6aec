"""Work away from the event loop: in threads, and in a process beside the broker."""
