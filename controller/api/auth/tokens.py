"""Static bearer tokens: made here, kept as hashes, shown once.

Promises: the file holds no secret: a token has 256 random bits, so one SHA-256 of it cannot be turned back (a
slow hash would protect nothing more, and cost every call); comparing takes the same time whatever was sent. A
token that is unknown, wrong or expired is refused in the same words. Called by the authenticator and by
``forecrest token``.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator

from controller.adapters.embedded.folder import write_private
from controller.api.auth.files import SecurityError, read_bounded
from controller.api.auth.roles import Grant

# What a scanner for leaked secrets, and our own logs, look for.
PREFIX = "fct"
TOKEN = re.compile(rf"{PREFIX}_([0-9a-f]{{16}})_([A-Za-z0-9_-]{{43}})")
TOKENS_MAX = 10_000
NAME = r"[a-z0-9](?:[a-z0-9._@-]{0,61}[a-z0-9])?"


class KeptToken(BaseModel):
    """One token as the file has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    name: Annotated[str, Field(pattern=f"^{NAME}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    grants: Annotated[tuple[str, ...], Field(min_length=1, max_length=100)]
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None

    @field_validator("grants")
    @classmethod
    def _are_grants(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(Grant.parse(text)) for text in value)


class TokenFile(BaseModel):
    """All of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: Annotated[tuple[KeptToken, ...], Field(max_length=TOKENS_MAX)] = ()

    @field_validator("tokens")
    @classmethod
    def _are_told_apart(cls, value: tuple[KeptToken, ...]) -> tuple[KeptToken, ...]:
        if len({token.id for token in value}) < len(value):
            raise ValueError("two tokens have the same id; remove one")
        return value


def read_tokens(path: Path) -> TokenFile:
    """Read the file; raise SecurityError."""
    try:
        return TokenFile.model_validate_json(read_bounded(path, "tokens_file"))
    except ValidationError as error:
        raise SecurityError(f"tokens_file: {path}: {first_problem(error)}") from None


def first_problem(error: ValidationError) -> str:
    """The first thing wrong, without the value: it may be a secret put in the wrong place."""
    found = error.errors(include_input=False, include_url=False)[0]
    at = ".".join(map(str, found["loc"]))
    return f"{at + ': ' if at else ''}{found['msg'].removeprefix('Value error, ')}"


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token just made: ``text`` is shown once, ``kept`` is what stays."""

    text: str
    kept: KeptToken


def make_token(name: str, grants: tuple[Grant, ...], now: datetime, expires_at: datetime | None) -> NewToken:
    """Make a token; raise SecurityError for a bad name."""
    token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    try:
        kept = KeptToken(
            id=token_id,
            name=name or token_id,
            sha256=_hash(secret),
            grants=tuple(map(str, grants)),
            created_at=now,
            expires_at=expires_at,
        )
    except ValidationError as error:
        raise SecurityError(first_problem(error)) from None
    return NewToken(f"{PREFIX}_{token_id}_{secret}", kept)


def save_tokens(path: Path, tokens: TokenFile) -> None:
    """Replace the file in one step; only the owner may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, tokens.model_dump_json(indent=2) + "\n")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenBook:
    """Tokens by id, to look them up."""

    def __init__(self, file: TokenFile) -> None:
        self._by_id = {token.id: token for token in file.tokens}
        self._grants = {token.id: tuple(map(Grant.parse, token.grants)) for token in file.tokens}
        self._nobody = secrets.token_hex(32)

    def find(self, text: str, now: datetime) -> tuple[KeptToken, tuple[Grant, ...]] | None:
        """Return the valid token that ``text`` is, with its grants; None for any other text."""
        parts = TOKEN.fullmatch(text)
        if parts is None:
            return None
        kept = self._by_id.get(parts[1])
        same = hmac.compare_digest(_hash(parts[2]), kept.sha256 if kept else self._nobody)
        if kept is None or not same or (kept.expires_at is not None and kept.expires_at <= now):
            return None
        return kept, self._grants[kept.id]
