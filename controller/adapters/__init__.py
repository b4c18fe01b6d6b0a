"""Adapters behind the ports; they never import the API or the use cases."""
