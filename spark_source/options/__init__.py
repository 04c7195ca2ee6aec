"""The options of the sources: their names, their rules, and the addresses that they give."""
