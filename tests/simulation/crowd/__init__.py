"""A hundred production brokers around one metadata log, with few clients."""
