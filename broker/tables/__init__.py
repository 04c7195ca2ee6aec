"""The open tables of this broker's topics.

Commits to a table go through here. The table's log and its format are in `storage/table/`.
"""
