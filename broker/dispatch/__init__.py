"""The path from a request's bytes to its handler, and from the handler's answer to bytes.

`routes.py` names the handler of each API. `request_order.py` decides which requests of a connection
run side by side.
"""
