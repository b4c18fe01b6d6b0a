"""Keep secrets out of the log: every line is looked over before it is written, tracebacks included.

Promises: bearer tokens, issuer tokens, passwords in URLs and ``Authorization`` headers do not reach a handler that
uses this formatter, whoever logs them, our code or a library. It is the second line: nothing of ours logs secrets.
Called by whoever configures logging.
"""

import logging
import re

_MASK = "***"
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"fct_([0-9a-f]{16})_[A-Za-z0-9_-]+", rf"fct_\1_{_MASK}"),
        (r"eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", _MASK),
        (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/._~=-]{8,}", rf"\1 {_MASK}"),
        # A password may hold anything but the at sign that ends it; the last one counts.
        (r"(?i)\b([a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/]*@", rf"\1:{_MASK}@"),
        (r"(?i)\b(password|passwd|pwd)(['\"]?\s*[=:]\s*['\"]?)[^\s'\",;&]+", rf"\1\2{_MASK}"),
        (r"(?i)\b(authorization['\"]?\s*[=:,]\s*['\"]?)(?!bearer|basic)[^\s'\",;]+", rf"\1{_MASK}"),
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", _MASK),
    )
)


def redact(text: str) -> str:
    """Return ``text`` without what looks like a secret."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


class RedactingFormatter(logging.Formatter):
    """A formatter whose every line has been looked over."""

    def format(self, record: logging.LogRecord) -> str:
        """Format, then redact: messages, arguments and tracebacks alike."""
        return redact(super().format(record))


def install() -> None:
    """Redact what the root logger's handlers write from now on; they keep their formats."""
    for handler in logging.getLogger().handlers:
        known = handler.formatter
        if not isinstance(known, RedactingFormatter):
            style = known._fmt if known else None  # noqa: SLF001 -- the format has no public name
            handler.setFormatter(RedactingFormatter(style, known.datefmt if known else None))
