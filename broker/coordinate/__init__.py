"""The group and transaction coordinators of this broker, their logs and markers.

This room acts: it loads, appends and answers. The decisions are in `coordinator/group/` and
`coordinator/transaction/`.
"""
