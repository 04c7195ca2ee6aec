"""Which topics may be created, where their partitions go, and how clients see them."""
