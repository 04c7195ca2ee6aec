"""The attacks: each module is found by itself, and each decorated function in it is one."""
