"""Resource names as people write them: ``workloads/{id}``, ``events/{id}``. Called by the API and the use cases."""

import re
import uuid

from controller.usecases.errors import Findings, InvalidError, Violation

ID = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
ID_RULE = 'must be 1 to 63 characters of a-z, 0-9 and "-", starting with a letter and not ending with "-"'
# Decision ids are made by the core; they only need to be safe to print and to look up.
DECISION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9@:._/+-]{0,199}")


def check_id(findings: Findings, field: str, value: str) -> None:
    """Record a violation unless ``value`` can be the last part of a resource name."""
    findings.require(ID.fullmatch(value) is not None, field, f"{ID_RULE}; got {value[:80]!r}")


def new_id(prefix: str) -> str:
    """Make up an id nobody has."""
    return f"{prefix}-{uuid.uuid4().hex[:16]}"


def profile_id(gpu_type: str) -> str:
    """The last part of the name of an engine's profile: the GPU type in lower case, "-" for what an id cannot hold."""
    text = re.sub(r"[^a-z0-9]+", "-", gpu_type.lower()).strip("-")[:63].strip("-")
    return text if ID.fullmatch(text) else f"gpu-{text}"[:63].strip("-")


def parse(name: str, pattern: str, field: str) -> tuple[str, ...]:
    """Split ``name`` by ``pattern``, for example "workloads/*/overrides/*"; raise InvalidError naming ``field``."""
    wanted, given = pattern.split("/"), name.split("/")
    ids = tuple(part for part, want in zip(given, wanted, strict=False) if want == "*")
    fits = len(wanted) == len(given) and all(
        ID.fullmatch(part) if want == "*" else part == want for part, want in zip(given, wanted, strict=True)
    )
    if not fits:
        shape = pattern.replace("*", "{id}")
        raise InvalidError(
            [Violation(field, f"must look like {shape}, each id {ID_RULE[5:]}; got {name[:120]!r}")]
        )
    return ids


def parse_decision(name: str, field: str) -> str:
    """Return the id of ``decisions/{id}``; raise InvalidError naming ``field``."""
    prefix, _, decision_id = name.partition("/")
    if prefix != "decisions" or not DECISION_ID.fullmatch(decision_id):
        raise InvalidError([Violation(field, f"must look like decisions/{{id}}; got {name[:120]!r}")])
    return decision_id
