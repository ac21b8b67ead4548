"""Typed tables: rules that convert raw rows to typed ones or reject them, and a reader of local files.

The rules are functions over Arrow data. `reader.read` runs them in this process; `narrowcast.spark.sources`
runs the same functions in Spark's Python workers.
"""
