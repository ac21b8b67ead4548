"""Matching and routing while events arrive, as a Structured Streaming job."""
