"""What a broker keeps: streams, positions, subscriptions, dead letters and backups."""
