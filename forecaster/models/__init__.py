"""The models that the ensemble combines; each is a pure function over a regular grid."""
