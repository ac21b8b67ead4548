"""Flows in sessions in groups (tock2005), and both levels planned together."""
