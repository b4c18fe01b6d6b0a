"""The gRPC API: thin servicers over the use cases; the only package that imports protobuf."""
