"""Objects, the stores that hold them, and numbered sequences of them."""
