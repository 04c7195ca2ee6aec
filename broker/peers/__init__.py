"""Requests to the other brokers of the cluster, over the Kafka protocol.

The transaction coordinator and the leaders of a transaction's partitions may be on several brokers.
This room carries their requests: additions and verifications of partitions, markers, and hints that
the metadata log moved. It decides nothing: each caller knows the meaning of a lost answer.
"""
