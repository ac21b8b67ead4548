"""Systems that Spark reads from and writes to."""
