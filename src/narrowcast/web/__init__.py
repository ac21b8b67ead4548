"""The broker over HTTP: an API, and metrics for Prometheus."""
