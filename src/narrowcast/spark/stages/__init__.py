"""The stages of the pipeline: compile, match, interest, evaluate, and how they are chained."""
