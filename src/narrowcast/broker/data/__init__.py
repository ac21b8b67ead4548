"""The data plane: events come in, are decoded, matched, routed and delivered."""
