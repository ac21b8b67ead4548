"""The NATS server that a broker starts, and what it reports of itself."""
