"""The data model: schemas, events, subscriptions, matches, interest, plans and costs. No algorithms."""
