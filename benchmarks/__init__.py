"""Measures Tidelog's costs and speed beside its peers, in the same run."""
