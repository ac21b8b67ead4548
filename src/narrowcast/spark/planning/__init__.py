"""Planning: on the driver where the interest fits, on Spark where it does not."""
