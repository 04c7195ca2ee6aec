"""How partitions come to this broker and leave it."""
