"""Digests and engine identities. Pure.

Promises: the same content has the same digest, the same build the same identity, on any machine.
An engine is named by what it was built *from* (model, options, tools), its file by what it *is*
(sha256). Called by the pipeline, the catalogue and the checks.
"""

import hashlib
import json
from pathlib import Path

from engines.types import BuildOptions, Toolchain, to_json

ENGINE_ID_LENGTH = 24  # 96 bits: no two builds of one catalogue ever share it


def content_digest(content: bytes) -> str:
    """`sha256:…` of bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def file_digest(path: Path) -> str:
    """`sha256:…` of a file, read in pieces."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def engine_id(model_digest: str, options: BuildOptions, toolchain: Toolchain) -> str:
    """Name of the engine that this model, these options and these tools make: 24 hexadecimal digits."""
    identity = json.dumps([model_digest, to_json(options), to_json(toolchain)])
    return hashlib.sha256(identity.encode()).hexdigest()[:ENGINE_ID_LENGTH]
