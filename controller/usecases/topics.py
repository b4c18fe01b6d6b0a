"""Topics of the change signal. Payloads are hints only; watchers read the store, so a lost one costs time, not truth."""

CHANGES = "changes"
"""Something a watcher may care about was committed: the payload is a resource name, for example b"events/x"."""
