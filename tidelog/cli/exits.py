"""The exit codes of every command."""

DONE = 0
REFUSED = 1
USAGE = 2
UNREACHABLE = 3
INCONSISTENT = 4
INTERRUPTED = 130
