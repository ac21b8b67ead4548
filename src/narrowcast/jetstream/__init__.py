"""Client for NATS and JetStream, shared by the broker and Spark.

`connection` is the only module of the project that imports nats-py; `api` works over any connection.
"""
