"""Alembic migrations of the store's schema, shipped as package data."""
