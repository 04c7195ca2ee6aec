"""The group coordinator: membership, assignments and committed offsets of consumer groups.

`machine.py` is the entry. A request's effect belongs in `requests/`, what the coordinator remembers
in `state/`, what its log stores in `records/`, the assignment of partitions in `assign/`.
"""
