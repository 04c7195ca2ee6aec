"""The Python SDK for applications, on confluent-kafka; `tidelog` offers its names.

It works against every broker that speaks the Kafka protocol. `tidelog.client` is another client: an
asynchronous one for Tidelog's own brokers, commands and Spark sink.
"""
