"""Users, their permissions, and how connections are authenticated and encrypted."""
