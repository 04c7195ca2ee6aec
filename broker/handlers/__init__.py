"""Request handlers, one module for each API family.

A handler belongs in the room of its services (`services.py`): `cluster/`, `data/`, `groups/` or
`transactions/`. The modules here are what several rooms use. A handler keeps no state.
"""
