"""The control plane: subscriptions, plans, rollouts and the placement of subscribers."""
