"""An administrator's requests."""
