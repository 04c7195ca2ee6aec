"""The write-ahead log: objects, writer, fencing, recovery, and the partition log."""
