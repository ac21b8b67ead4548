"""What things are: schemas, events, subscriptions, matches, interest, plans, costs. No algorithms."""
