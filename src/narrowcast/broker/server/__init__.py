"""The NATS server that a broker starts: its process, configuration and system account."""
