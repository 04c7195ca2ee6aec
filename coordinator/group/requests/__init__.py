"""The effect and the reply of each request to a group coordinator."""
