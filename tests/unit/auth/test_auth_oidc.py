"""Issuer's tokens against a real issuer on loopback: what passes, what must not, and how keys turn over."""

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from forecrest.v1 import workload_service_pb2
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from controller.adapters.clock import SystemClock
from controller.api.auth.files import SecurityError
from controller.api.auth.oidc import (
    KEYS_AGE_MAX_S,
    REFETCH_MIN_S,
    KeySet,
    OidcSettings,
    OidcVerifier,
    TokenRefusedError,
    read_keys,
)
from controller.api.auth.security import SecurityFiles
from controller.client import Client
from controller.credentials import Credentials
from tests.unit.auth.conftest import Opened, Refused

AUDIENCE = "forecrest"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
WEAK_KEY = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # to be refused


class MovedClock(SystemClock):
    """Durations as the test says."""

    def __init__(self) -> None:
        self.moved_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.moved_s


def published(key: Any, kid: str, **more: str) -> dict[str, Any]:  # noqa: ANN401 -- keys have no common type
    """The public half of a key as an issuer publishes it."""
    algorithm: Any = {
        rsa.RSAPrivateKey: RSAAlgorithm,
        ec.EllipticCurvePrivateKey: ECAlgorithm,
        ed25519.Ed25519PrivateKey: OKPAlgorithm,
    }[
        next(
            kind
            for kind in (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey, ed25519.Ed25519PrivateKey)
            if isinstance(key, kind)
        )
    ]
    return json.loads(algorithm.to_jwk(key.public_key())) | {"kid": kid} | more


class Issuer:
    """Publishes whatever keys the test puts there, and counts how often it is asked."""

    def __init__(self) -> None:
        self.keys = [published(RSA_KEY, "one"), published(EC_KEY, "curve"), published(ED_KEY, "edwards")]
        self.asked_count = 0
        self.status = 200
        self.url = ""

    async def answer(self, _: web.Request) -> web.Response:
        self.asked_count += 1
        return web.json_response({"keys": self.keys}, status=self.status)


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    made = Issuer()
    app = web.Application()
    app.router.add_get("/keys", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    addresses: Any = runner.addresses
    made.url = f"http://127.0.0.1:{addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def verifier(issuer: Issuer, clock: MovedClock) -> OidcVerifier:
    return OidcVerifier(OidcSettings(issuer.url, AUDIENCE, f"{issuer.url}/keys"), clock)


def claims(issuer: Issuer, **changed: Any) -> dict[str, Any]:  # noqa: ANN401 -- claims are of any type
    now = SystemClock().now()
    made = {
        "iss": issuer.url,
        "aud": AUDIENCE,
        "sub": "ada",
        "exp": now + timedelta(hours=1),
        "nbf": now - timedelta(hours=1),
        "groups": ["planners"],
    } | changed
    return {key: value for key, value in made.items() if value is not None}


def signed(
    payload: dict[str, Any],
    key: Any = RSA_KEY,  # noqa: ANN401 -- as above
    algorithm: str = "RS256",
    kid: str | None = "one",
) -> str:
    return jwt.encode(payload, key, algorithm=algorithm, headers={} if kid is None else {"kid": kid})


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [
        (RSA_KEY, "RS256", "one"),
        (RSA_KEY, "PS512", "one"),
        (EC_KEY, "ES256", "curve"),
        (ED_KEY, "EdDSA", "edwards"),
    ],
)
async def test_a_token_of_the_issuer_says_who_it_is(
    issuer: Issuer,
    verifier: OidcVerifier,
    key: Any,  # noqa: ANN401 -- as above
    algorithm: str,
    kid: str,
) -> None:
    who = await verifier.verify(signed(claims(issuer), key, algorithm, kid))

    assert ("ada", ("planners",)) == (who.subject, who.groups)


NOW = SystemClock().now()
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    "changed",
    [
        {"iss": "https://elsewhere.example"},
        {"iss": None},
        {"aud": "another-service"},
        {"aud": ["a", "b"]},
        {"aud": None},
        {"exp": NOW - HOUR},
        {"exp": None},
        {"exp": "soon"},
        {"nbf": NOW + HOUR},
        {"iat": NOW + HOUR},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\nb"},
        {"sub": "x" * 201},
        {"groups": {"planners": True}},
    ],
    # The same in every process that collects: times differ.
    ids=lambda changed: " ".join(f"{k}-{type(v).__name__}" for k, v in changed.items()),
)
async def test_a_token_that_says_anything_else_is_refused(
    issuer: Issuer, verifier: OidcVerifier, changed: dict[str, Any]
) -> None:
    with pytest.raises(TokenRefusedError):
        await verifier.verify(signed(claims(issuer, **changed)))


async def test_clocks_may_differ_a_little(issuer: Issuer, verifier: OidcVerifier) -> None:
    now = SystemClock().now()
    token = signed(claims(issuer, exp=now - timedelta(seconds=2), nbf=now + timedelta(seconds=2)))

    assert "ada" == (await verifier.verify(token)).subject


def part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def plain(issuer: Issuer) -> str:
    payload = claims(issuer)
    payload |= {name: int(payload[name].timestamp()) for name in ("exp", "nbf")}
    return part(payload)


async def test_a_token_nobody_signed_is_refused(issuer: Issuer, verifier: OidcVerifier) -> None:
    for algorithm in ("none", "None", "NONE", ""):
        with pytest.raises(TokenRefusedError):
            await verifier.verify(f"{part({'alg': algorithm, 'kid': 'one', 'typ': 'JWT'})}.{plain(issuer)}.")


async def test_the_public_key_is_no_shared_secret(issuer: Issuer, verifier: OidcVerifier) -> None:
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    body = f"{part({'alg': 'HS256', 'kid': 'one', 'typ': 'JWT'})}.{plain(issuer)}"
    mac = hmac.new(public, body.encode(), hashlib.sha256).digest()

    with pytest.raises(TokenRefusedError):
        await verifier.verify(f"{body}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}")


async def test_a_key_is_good_for_its_own_kind_of_algorithm_only(
    issuer: Issuer, verifier: OidcVerifier
) -> None:
    issuer.keys = [published(RSA_KEY, "one", alg="RS256"), published(RSA_KEY, "enc", use="enc")]
    await verifier.verify(signed(claims(issuer)))

    for token in (
        signed(claims(issuer), RSA_KEY, "PS256", "one"),  # published for RS256 alone
        signed(claims(issuer), RSA_KEY, "RS256", "enc"),  # published for encryption
        signed(claims(issuer), RSA_KEY, "RS256", None),
        signed(claims(issuer), OTHER_KEY, "RS256", "one"),
        signed(claims(issuer), EC_KEY, "ES256", "one"),
        signed(claims(issuer)) + "x",
        "a.b.c",
        "x" * 9000,
    ):
        with pytest.raises(TokenRefusedError):
            await verifier.verify(token)


def test_weak_and_shared_keys_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    shared = {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"}
    found = read_keys(json.dumps({"keys": [published(WEAK_KEY, "weak"), shared, "text", {}]}).encode())

    assert {} == found
    assert "less than 2048 bits" in caplog.text


@pytest.mark.parametrize("text", ["[]", "{}", '{"keys": {}}', json.dumps({"keys": [{}] * 101}), "no json"])
def test_what_is_no_key_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"key set|Expecting"):
        read_keys(text.encode())


async def test_new_keys_are_fetched_once_they_are_used_and_not_for_every_unknown_one(
    issuer: Issuer, verifier: OidcVerifier, clock: MovedClock
) -> None:
    await verifier.verify(signed(claims(issuer)))
    issuer.keys = [published(OTHER_KEY, "two")]
    fresh = signed(claims(issuer), OTHER_KEY, kid="two")
    for kid in range(20):
        with pytest.raises(TokenRefusedError):
            await verifier.verify(signed(claims(issuer), OTHER_KEY, kid=f"made-up-{kid}"))
    assert 1 == issuer.asked_count

    clock.moved_s += REFETCH_MIN_S + 1

    assert "ada" == (await verifier.verify(fresh)).subject
    assert 2 == issuer.asked_count
    with pytest.raises(TokenRefusedError):  # withdrawn by the issuer
        await verifier.verify(signed(claims(issuer)))


async def test_keys_are_kept_while_the_issuer_is_away_but_not_for_ever(
    issuer: Issuer, verifier: OidcVerifier, clock: MovedClock
) -> None:
    await verifier.verify(signed(claims(issuer)))
    issuer.status = 503
    clock.moved_s += KEYS_AGE_MAX_S / 2
    assert "ada" == (await verifier.verify(signed(claims(issuer)))).subject
    assert verifier.keys.failed

    clock.moved_s += KEYS_AGE_MAX_S
    with pytest.raises(TokenRefusedError):
        await verifier.verify(signed(claims(issuer)))


async def test_keys_come_from_a_file_too(issuer: Issuer, clock: MovedClock, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": issuer.keys}))
    verifier = OidcVerifier(OidcSettings(issuer.url, AUDIENCE, str(file)), clock)

    assert "ada" == (await verifier.verify(signed(claims(issuer)))).subject
    assert 0 == issuer.asked_count


async def test_a_key_set_that_never_ends_is_given_up(issuer: Issuer, clock: MovedClock) -> None:
    issuer.keys = [{"kty": "RSA", "n": "A" * 300_000}]
    keys = KeySet(f"{issuer.url}/keys", clock)

    await keys.refresh(0.0)

    assert keys.failed


def test_keys_over_plain_http_are_refused(clock: MovedClock) -> None:
    with pytest.raises(SecurityError, match="plain http"):
        KeySet("http://issuer.example/keys", clock)


def oidc_files(issuer: Issuer, folder: Path) -> SecurityFiles:
    access = folder / "access.yaml"
    access.write_text("groups:\n  planners: ['planner:shop']\n  everyone: ['viewer:shop', 'viewer:search']\n")
    return SecurityFiles(access=access, oidc=OidcSettings(issuer.url, AUDIENCE, f"{issuer.url}/keys"))


@pytest.mark.parametrize(
    ("groups", "code"),
    [
        (["planners"], "OK"),
        (["strangers", 7], "PERMISSION_DENIED"),
        ("everyone", "OK"),
        (None, "PERMISSION_DENIED"),
    ],
)
async def test_groups_have_the_grants_of_the_access_file(
    opened: Opened,
    issuer: Issuer,
    tmp_path: Path,
    refused: Refused,
    groups: Any,  # noqa: ANN401 -- as a token may have them
    code: str,
) -> None:
    request = workload_service_pb2.GetWorkloadRequest(name="workloads/cart")
    async with (
        opened(oidc_files(issuer, tmp_path)) as server,
        Client(server.target, credentials=Credentials(token=signed(claims(issuer, groups=groups)))) as client,
    ):
        call = client.workloads.GetWorkload(request)
        if code == "OK":
            assert "workloads/cart" == (await call).name
        else:
            assert code == (await refused(call)).code


async def test_a_stream_ends_when_its_token_does(
    opened: Opened, issuer: Issuer, tmp_path: Path, refused: Refused
) -> None:
    from forecrest.v1 import control_service_pb2

    files = oidc_files(issuer, tmp_path)
    # Within the leeway it still opens streams, which then end at once.
    over = signed(claims(issuer, exp=SystemClock().now() - timedelta(seconds=5)))
    async with (
        opened(files) as server,
        Client(server.target, credentials=Credentials(token=over)) as client,
    ):
        stream = client.control.WatchDecisions(control_service_pb2.WatchDecisionsRequest())
        error = await refused(anext(aiter(stream)))

    assert "UNAUTHENTICATED" == error.code
    assert "open it again" in error.message
