"""The second line against secrets in logs: whatever is logged is looked over."""

import io
import logging

import pytest

from controller.adapters.clock import SystemClock
from controller.api.auth.roles import Grant
from controller.api.auth.tokens import make_token
from controller.redaction import RedactingFormatter, install, redact

TOKEN = make_token("x", (Grant.parse("viewer:*"),), SystemClock().now(), None).text


@pytest.mark.parametrize(
    ("text", "secret", "kept"),
    [
        pytest.param(f"a call with {TOKEN} came", TOKEN[21:], TOKEN[:20], id="a token of ours"),
        ("jwt eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.c2ln end", "eyJzdWIiOiJ4In0", "end"),
        ("Authorization: Basic dXNlcjpodW50ZXIy", "dXNlcjpodW50ZXIy", "Authorization: Basic"),
        ("('authorization', 'Bearer abc.def-ghi_jkl')", "abc.def-ghi_jkl", "authorization"),
        ("authorization=sesame", "sesame", "authorization="),
        ("postgresql+psycopg://ada:p4:ss@w0rd@db:5432/x?sslmode=require", "p4:ss@w0rd", "db:5432/x"),
        ("redis://:hunter2@cache:6379/0 is away", "hunter2", "cache:6379/0"),
        ("connection failed: user=ada password=hunter2 host=db", "hunter2", "host=db"),
        ("{'password': 'hunter2', 'user': 'ada'}", "hunter2", "'user': 'ada'"),
        ("-----BEGIN PRIVATE KEY-----\nMIGH\nAgEA\n-----END PRIVATE KEY----- after", "MIGH", "after"),
        ("-----BEGIN EC PRIVATE KEY-----\nMIGH cut off", "MIGH", ""),
    ],
)
def test_what_looks_like_a_secret_is_masked_and_the_rest_stays(text: str, secret: str, kept: str) -> None:
    said = redact(text)

    assert secret not in said
    assert kept in said


@pytest.mark.parametrize(
    "text",
    [
        "page_token: is not a token of this listing",
        "replica cart-1: VERIFIED",
        "GET http://127.0.0.1:8000/metrics took 3 ms",
        "basic facts: 12 replicas",
        "the bearer of bad news",
        "events/midnight-sale at 2026-11-11T00:00:00Z",
    ],
)
def test_ordinary_lines_stay_as_they_are(text: str) -> None:
    assert text == redact(text)


def test_messages_arguments_and_tracebacks_are_looked_over() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter("%(levelname)s %(message)s"))
    failure = ValueError("redis://:hunter2@cache is no such URL")
    for record in (
        logging.LogRecord("x", logging.WARNING, "", 1, "with %s", (f"Bearer {TOKEN}",), None),
        logging.LogRecord("x", logging.ERROR, "", 1, "failed", (), (ValueError, failure, None)),
    ):
        handler.emit(record)

    assert "ValueError" in stream.getvalue()
    assert not [s for s in (TOKEN[21:], "hunter2") if s in stream.getvalue()]


def test_installing_keeps_formats_and_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter("says %(message)s"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    install()
    first = handler.formatter
    install()

    record = logging.makeLogRecord({"msg": "password=hunter2"})
    assert first is handler.formatter
    assert "says password=***" == handler.format(record)
