"""Storage of the broker: streams, positions, subscriptions, dead letters and backups."""
