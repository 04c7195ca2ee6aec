"""Who a client is: TLS and certificates, SASL and its mechanisms."""
