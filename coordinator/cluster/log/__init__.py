"""The metadata log on the store: entries, snapshots, leases, and the proof of its end."""
