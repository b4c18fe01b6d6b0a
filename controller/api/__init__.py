"""The public gRPC API: thin servicers over use cases. The only place that knows protobuf."""
