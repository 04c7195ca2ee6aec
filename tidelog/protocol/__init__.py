"""The Kafka wire protocol: schemas, codec and frames."""
