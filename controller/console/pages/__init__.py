"""Pages of the console: one module per group, each with ``routes``, ``SOURCES`` and ``NAV``. See docs/console.md."""
