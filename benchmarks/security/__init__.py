"""The cost of protection: TLS, handshakes, access control rules; and how exactly quotas hold."""
