"""What pages show: pure functions from messages of the API to frozen dataclasses. No I/O, no clock."""
