"""Who calls: a bearer token, an issuer's token, or a client certificate becomes a name with grants.

Promises: refusals never say which part was wrong; the name says how the caller proved it (``token/``, ``oidc/``,
``cert/``), so that one kind cannot pose as another; a bad token is refused even beside a good certificate.
Called by the guard and by the side port.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from controller.api.auth.files import SecurityError, WatchedFiles, read_bounded
from controller.api.auth.oidc import OidcVerifier, TokenRefusedError
from controller.api.auth.roles import Grant
from controller.api.auth.tokens import TokenBook, first_problem
from controller.ports import Clock
from controller.usecases.errors import UseCaseError

log = logging.getLogger(__name__)


class UnauthenticatedError(UseCaseError):
    """Nobody we know."""

    code = "UNAUTHENTICATED"

    def __init__(self, message: str = "the credentials are not valid (any more); send others") -> None:
        super().__init__("UNAUTHENTICATED", message)


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller who proved a name. ``expires_at``: when the proof ends, None never by itself."""

    principal: str
    grants: tuple[Grant, ...]
    expires_at: datetime | None = None


_Grants = Annotated[tuple[str, ...], Field(min_length=1, max_length=100)]


class AccessFile(BaseModel):
    """What people write: grants by certificate identity and by an issuer's groups."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    certificates: Annotated[dict[str, _Grants], Field(max_length=10_000)] = {}
    groups: Annotated[dict[str, _Grants], Field(max_length=10_000)] = {}

    @field_validator("certificates")
    @classmethod
    def _are_identities(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for key in value:
            if key.partition(":")[0] not in {"uri", "dns", "cn"} or not key.partition(":")[2]:
                raise ValueError(
                    f"{key[:120]!r} is no identity; write uri:spiffe://…, dns:host.example or cn:name"
                )
        return value

    @field_validator("certificates", "groups")
    @classmethod
    def _have_grants(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for grants in value.values():
            for text in grants:
                Grant.parse(text)
        return value


def read_access(path: Path) -> AccessFile:
    """Read the file; raise SecurityError."""
    try:
        return AccessFile.model_validate(yaml.safe_load(read_bounded(path, "access_file")) or {})
    except ValidationError as error:
        raise SecurityError(f"access_file: {path}: {first_problem(error)}") from None
    except yaml.YAMLError as error:
        raise SecurityError(f"access_file: {path} is no YAML") from error


def certificate_names(auth_context: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Identities of the certificate a peer proved on a gRPC connection, the most specific first."""

    def values(key: str) -> list[str]:
        return [value.decode(errors="replace") for value in auth_context.get(key, ())]

    names = [f"uri:{v}" for v in values("peer_uri")] + [f"dns:{v}" for v in values("peer_dns")]
    # The common name is for certificates without any other: it is free text that some authorities do not check.
    return names or [f"cn:{v}" for v in values("x509_common_name")]


class Authenticator:
    """Knows every way to prove a name that is configured."""

    def __init__(
        self,
        clock: Clock,
        *,
        tokens: WatchedFiles[TokenBook] | None = None,
        access: WatchedFiles[AccessFile] | None = None,
        oidc: OidcVerifier | None = None,
        certificates: bool = False,
    ) -> None:
        self._clock, self._tokens, self._access, self._oidc = clock, tokens, access, oidc
        self._certificates = certificates and access is not None

    @property
    def enabled(self) -> bool:
        """Whether there is any way to prove a name; without one, callers are not told apart."""
        return self._tokens is not None or self._oidc is not None or self._certificates

    async def identify(self, authorization: list[str], names: list[str]) -> Identity:
        """Return who this is, from ``authorization`` values and certificate names; raise UnauthenticatedError."""
        if authorization:
            return await self._bearer(authorization)
        if self._certificates and names:
            return self._certificate(names)
        ways = [
            way
            for way, there in (
                ('metadata "authorization: Bearer …"', self._tokens is not None or self._oidc is not None),
                ("a client certificate", self._certificates),
            )
            if there
        ]
        raise UnauthenticatedError(f"no credentials; send {' or '.join(ways)}")

    async def _bearer(self, authorization: list[str]) -> Identity:
        scheme, _, text = authorization[0].partition(" ")
        if len(authorization) != 1 or scheme.lower() != "bearer":
            raise UnauthenticatedError
        if self._tokens is not None:
            found = self._tokens.value.find(text, self._clock.now())
            if found is not None:
                kept, grants = found
                return Identity(f"token/{kept.name}", grants, kept.expires_at)
        if self._oidc is not None and text.count(".") == 2:
            try:
                who = await self._oidc.verify(text)
            except TokenRefusedError as refused:
                log.info("oidc: a token is refused: %s", refused)
                raise UnauthenticatedError from refused
            groups = self._access.value.groups if self._access else {}
            texts = dict.fromkeys(text for group in who.groups for text in groups.get(group, ()))
            return Identity(f"oidc/{who.subject}", tuple(map(Grant.parse, texts)), who.expires_at)
        raise UnauthenticatedError

    def _certificate(self, names: list[str]) -> Identity:
        known = self._access.value.certificates if self._access else {}
        for name in names:
            if name in known:
                return Identity(f"cert/{name}", tuple(map(Grant.parse, known[name])))
        raise UnauthenticatedError(
            "this client certificate has no grants; add its identity to the access file"
        )
