"""Message schemas, one module for each API family.

Each field stands as in Kafka's schema. `tidelog/protocol/api.py` registers the messages. Modules
outside the subpackages are about records, groups and transactions.
"""
