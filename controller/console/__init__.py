"""The web console: a client of the public gRPC API, rendered on the server, kept live by server-sent events.

Promises: it knows ``controller.client`` and nothing else of the controller; what it does not know it shows as unknown.
"""
