"""The simulated world: time, tasks, network, store and processes."""
