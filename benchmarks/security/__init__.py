"""What protection costs: TLS, handshakes, access control rules; how exactly quotas hold."""
