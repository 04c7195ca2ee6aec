"""Writing from Spark: exactly once into topics."""
