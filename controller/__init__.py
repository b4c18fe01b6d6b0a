"""Forecrest's control plane: decides, records, applies; `bootstrap` is the only place that names adapters."""
