"""The group coordinator: membership, assignments and committed offsets of consumer groups.

`machine.py` is the entry. The effects of requests belong in `requests/`, the coordinator's state in
`state/`, the records of its log in `records/`, the assignment of partitions in `assign/`.
"""
