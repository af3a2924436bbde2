"""The worker's end of the connection: calls of other models, responses through senders, metrics, memory of devices, and whether
the model is ready. Read `connection.py`.
"""
