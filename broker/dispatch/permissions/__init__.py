"""The permissions that each request needs, and the guard that checks them."""
