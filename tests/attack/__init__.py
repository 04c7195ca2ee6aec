"""Clients that try to starve others, and the latencies of a well-behaved client meanwhile.

An attack is an asynchronous function in a module of `attacks`, decorated with `attack`. `make
attack` runs each in a process of its own against a `tidelog server` process, on loopback and
bounded in time, beside a well-behaved client in the process of the test; it writes docs/ATTACKS.md.
"""
