"""Two-level plans, flows in sessions in groups (tock2005), and planning of both levels at once."""
