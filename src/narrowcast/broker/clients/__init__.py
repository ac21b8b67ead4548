"""Publishers and subscribers."""
