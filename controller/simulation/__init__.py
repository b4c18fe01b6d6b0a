"""Trace replay on a virtual clock: the production core and its peers over one cluster model."""
