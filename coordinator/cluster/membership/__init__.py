"""Registration of brokers, their leases, fencing and takeover."""
