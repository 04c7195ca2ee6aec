"""Handlers of requests about settings of topics, brokers, groups, clients and users."""
