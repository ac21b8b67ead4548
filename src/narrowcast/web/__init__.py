"""HTTP access to the broker: an API, and metrics for Prometheus."""
