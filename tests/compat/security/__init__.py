"""The matrix of clients and mechanisms, and the table of permissions beside Apache Kafka."""
