"""Actuators: change replica counts and verify that replicas are warm."""
