"""Sign an engine's manifest with Ed25519, and check signatures against trusted keys.

Promises: the manifest holds the digest of every file, so its signature covers them all; a signature by
an unknown key, or of other content, is none. Keys are PEM files, as `openssl genpkey -algorithm ed25519`
makes them. Refuses other kinds of keys. Called by the catalogue. `cryptography` is imported on first use.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.errors import EngineInputError, MissingPackageError


def _load(module: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            "cryptography", "signing engines", "install the extra: pip install 'forecrest[engines]'"
        ) from error


def _key(path: Path, kind: str, field: str) -> Any:  # noqa: ANN401 - a key of the library
    serialization = _load("cryptography.hazmat.primitives.serialization")
    ed25519 = _load("cryptography.hazmat.primitives.asymmetric.ed25519")
    try:
        content = path.read_bytes()
        if kind == "private":
            key = serialization.load_pem_private_key(content, password=None)
        else:
            key = serialization.load_pem_public_key(content)
    except (OSError, ValueError, TypeError) as error:
        # Never the content: it may be a secret.
        raise EngineInputError(
            field, f"{path} is no usable {kind} key", "make one with openssl genpkey -algorithm ed25519"
        ) from error
    expected = ed25519.Ed25519PrivateKey if kind == "private" else ed25519.Ed25519PublicKey
    if not isinstance(key, expected):
        raise EngineInputError(field, f"{path} is no Ed25519 key", "use openssl genpkey -algorithm ed25519")
    return key


def sign(manifest: bytes, private_key: Path) -> bytes:
    """The signature of a manifest, 64 bytes."""
    signature: bytes = _key(private_key, "private", "signing_key").sign(manifest)
    return signature


def is_signed(manifest: bytes, signature: bytes, public_keys: Sequence[Path]) -> bool:
    """Whether one of the trusted keys made this signature of this manifest."""
    invalid = _load("cryptography.exceptions").InvalidSignature
    for path in public_keys:
        try:
            _key(path, "public", "trusted_key").verify(signature, manifest)
        except invalid:
            continue
        return True
    return False
