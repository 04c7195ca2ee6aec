"""The open tables of this broker's topics."""
