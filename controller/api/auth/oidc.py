"""Tokens of an OpenID Connect issuer: JWTs checked against the issuer's published keys.

Promises: only asymmetric algorithms, each only with a key of its own kind, so neither ``none`` nor an HMAC made
with a public key passes; issuer, audience, subject, expiry and not-before are required or checked, with a little
leeway for clocks; an unknown key id makes us fetch the keys again, but rarely, so that nobody can make us hammer
the issuer. Keys older than a day are trusted no longer. Called by the authenticator.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohttp
import jwt
from jwt import PyJWK, PyJWTError

from controller.api.auth.files import SecurityError, read_bounded
from controller.ports import Clock

log = logging.getLogger(__name__)

TOKEN_BYTES_MAX = 8 * 1024
JWKS_BYTES_MAX = 256 * 1024
KEYS_MAX = 100
FETCH_TIMEOUT_S = 5.0
# How soon an unknown key id may make us ask again, how often we look anyway, and for how long keys last.
REFETCH_MIN_S, REFETCH_S, KEYS_AGE_MAX_S = 30.0, 300.0, 86_400.0
RSA_BITS_MIN = 2048
# The algorithms each kind of key is good for. HMAC is not among them: its key would have to be shared.
_ALGORITHMS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """The issuer and what its tokens must say. ``jwks``: an https URL or a file."""

    issuer: str
    audience: str
    jwks: str
    groups_claim: str = "groups"
    leeway_s: float = 30.0


@dataclass(frozen=True, slots=True)
class OidcIdentity:
    """What a valid token says: who, in which groups, until when."""

    subject: str
    groups: tuple[str, ...]
    expires_at: datetime


class TokenRefusedError(Exception):
    """The token is not valid; the message is for our log and holds nothing of it."""


def read_keys(data: bytes) -> dict[str, dict[str, Any]]:
    """Return, by key id, the public key for each algorithm it may be used with; raise ValueError.

    Keys of other kinds or for other uses are passed over: an issuer may publish more than we need.
    """
    parsed = json.loads(data)
    listed = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise ValueError(f'is no key set: an object with "keys", at most {KEYS_MAX} of them')
    found: dict[str, dict[str, Any]] = {}
    for jwk in listed:
        if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig":
            continue
        kid, kind = jwk.get("kid"), (str(jwk.get("kty")), str(jwk.get("crv", "")))
        algorithms = _ALGORITHMS.get(kind, ())
        if not isinstance(kid, str) or not algorithms:
            continue
        try:
            key = PyJWK(jwk, algorithms[0]).key
        except PyJWTError:
            log.warning("oidc: a key of kind %s in the key set cannot be read", kind[0])
            continue
        if getattr(key, "key_size", RSA_BITS_MIN) < RSA_BITS_MIN and kind[0] == "RSA":
            log.warning(
                "oidc: an RSA key of the key set has less than %d bits and is passed over", RSA_BITS_MIN
            )
            continue
        named = jwk.get("alg")
        found[kid] = {a: key for a in algorithms if named in {None, a}}
    return found


class KeySet:
    """The issuer's keys, fetched when needed."""

    def __init__(self, source: str, clock: Clock) -> None:
        """Fetch nothing yet; raise SecurityError unless the source is a file or an https URL."""
        url = urlsplit(source)
        self._is_url = url.scheme in {"http", "https"}
        local = url.hostname in {"127.0.0.1", "::1", "localhost"}
        if url.scheme == "http" and not local:
            raise SecurityError("oidc_jwks: keys over plain http can be replaced on their way; use https")
        self._source, self._clock = source, clock
        self._keys: dict[str, dict[str, Any]] = {}
        self._asked_s = self._held_s = float("-inf")
        self._asking = asyncio.Lock()
        self.failed = False

    async def key(self, kid: str, algorithm: str) -> Any:  # noqa: ANN401 -- the library's keys have no type
        """Return the key, or None; asks the issuer anew for a key id it does not know, at most twice a minute."""
        await self.refresh(REFETCH_MIN_S if kid not in self._keys else REFETCH_S)
        if self._clock.monotonic() - self._held_s > KEYS_AGE_MAX_S:
            return None
        return self._keys.get(kid, {}).get(algorithm)

    async def refresh(self, age_s: float) -> None:
        """Fetch the keys, unless they were asked for less than ``age_s`` ago; failures keep what is known."""
        async with self._asking:  # those who wait find the answer of the first
            if self._clock.monotonic() - self._asked_s < age_s:
                return
            self._asked_s = self._clock.monotonic()
            try:
                self._keys = read_keys(await self._fetch())
                self._held_s = self._clock.monotonic()
                self.failed = False
            except (SecurityError, ValueError, aiohttp.ClientError, TimeoutError) as error:
                self.failed = True
                log.error(  # noqa: TRY400 -- said, not traced
                    "oidc: the issuer's keys stay as they were: %s", type(error).__name__
                )

    async def _fetch(self) -> bytes:
        if not self._is_url:
            return read_bounded(Path(self._source), "oidc_jwks")
        timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            # A redirect could lead to plain http.
            session.get(self._source, allow_redirects=False) as response,
        ):
            data = await response.content.read(JWKS_BYTES_MAX + 1)
            while not response.content.at_eof() and len(data) <= JWKS_BYTES_MAX:
                data += await response.content.read(JWKS_BYTES_MAX + 1 - len(data))
            if response.status != 200 or len(data) > JWKS_BYTES_MAX:
                raise ValueError(f"the issuer answered {response.status}")
            return data


class OidcVerifier:
    """Checks tokens of one issuer."""

    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        """Raise SecurityError for settings that cannot work."""
        self._settings = settings
        self.keys = KeySet(settings.jwks, clock)

    async def verify(self, token: str) -> OidcIdentity:
        """Return what the token says; raise TokenRefusedError."""
        if len(token) > TOKEN_BYTES_MAX:
            raise TokenRefusedError("longer than any token")
        try:
            header = jwt.get_unverified_header(token)
            kid, algorithm = header.get("kid"), header.get("alg")
            if not isinstance(kid, str) or not isinstance(algorithm, str) or "crit" in header:
                raise TokenRefusedError("no kid, no alg, or an extension nobody knows")
            key = await self.keys.key(kid, algorithm)
            if key is None:
                raise TokenRefusedError("signed with a key the issuer does not publish for this algorithm")
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=self._settings.leeway_s,
                options={"require": ["exp", "iss", "aud", "sub"], "enforce_minimum_key_length": True},
            )
            return self._identity(claims)
        except (PyJWTError, ValueError, OverflowError) as error:
            raise TokenRefusedError(type(error).__name__) from error

    def _identity(self, claims: Mapping[str, Any]) -> OidcIdentity:
        subject, groups = claims["sub"], claims.get(self._settings.groups_claim, [])
        if isinstance(groups, str):
            groups = [groups]
        if not isinstance(subject, str) or not 1 <= len(subject) <= 200 or not subject.isprintable():
            raise TokenRefusedError("no usable subject")
        if not isinstance(groups, list):
            raise TokenRefusedError("groups are no list")
        return OidcIdentity(
            quote(subject, safe="@.:/+=~"),  # as it is for people, and free of what we separate names with
            tuple(group for group in groups if isinstance(group, str)),
            datetime.fromtimestamp(int(claims["exp"]), UTC),
        )
