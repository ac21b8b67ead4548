"""Typed tables: the rules by which raw rows get types or are set aside, and the reader of local files.

The rules are functions over Arrow data. `reader.read` runs them in this process; `narrowcast.spark.sources`
runs the same functions in the workers of Spark.
"""
