"""The write-ahead log: objects, writer, fencing, recovery, and the partition log.

The bytes are in `format/`, a partition's pure state in `log/`. `write/` has group commit and
checkpoints, `read/` the reads of WAL objects, `recover/` fencing and recovery. `roll/` decides
which records leave the WAL.
"""
