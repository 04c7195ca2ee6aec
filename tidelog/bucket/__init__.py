"""A bucket without a broker, to be read only: topics, tables, tails, coordinators' states."""
