"""The tables of settings: each name with its type, default, rules and effect."""
