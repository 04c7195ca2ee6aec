"""Each request to a group coordinator: what it changes and what it is answered."""
