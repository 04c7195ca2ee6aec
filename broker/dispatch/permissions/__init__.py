"""What each request must be allowed to do, and the guard that asks for it."""
