"""Identifies clients: TLS and certificates, SASL and its mechanisms."""
