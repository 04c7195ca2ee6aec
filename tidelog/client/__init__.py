"""An asynchronous Kafka protocol client on Tidelog's own codec."""
