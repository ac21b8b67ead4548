"""Connectors of Spark to message brokers."""
