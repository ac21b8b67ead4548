"""Streaming jobs on Spark Structured Streaming: matching and routing of events, and online planning."""
