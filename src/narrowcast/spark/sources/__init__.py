"""Table sources of Spark: reading tables of any format into typed rows and rejected rows."""
