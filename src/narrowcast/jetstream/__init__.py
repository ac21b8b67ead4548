"""NATS and its JetStream: one connection and one API client for the broker and for Spark.

`connection` is the only module of the project that imports nats-py; `api` works over any connection.
"""
