"""Segments: Parquet files of one partition's committed records."""
