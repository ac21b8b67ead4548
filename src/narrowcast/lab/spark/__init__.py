"""Methods and sweeps of the lab on Spark."""
