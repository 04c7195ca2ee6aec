"""The binary forms of WAL objects, merged objects, staged objects and images."""
