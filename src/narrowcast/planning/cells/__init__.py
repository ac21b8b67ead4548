"""Groups of grid cells and events that waste little when they share a channel (riabov2003)."""
