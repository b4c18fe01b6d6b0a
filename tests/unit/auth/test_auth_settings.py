"""Security settings that contradict each other end the start; model files stay in their folders."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from controller.actuators.local_engines import model_path
from controller.bootstrap import api_limits, security_files
from controller.settings import Settings


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tls_cert": "a"}, "tls_cert and tls_key belong together"),
        ({"tls_client_ca": "a"}, "needs tls_cert"),
        ({"oidc_issuer": "https://i"}, "belong together"),
        ({"oidc_issuer": "https://i", "oidc_audience": "f", "oidc_jwks": "j"}, "access_file is needed"),
        ({"tls_cert": "a", "tls_key": "b", "tls_client_ca": "c"}, "access_file is needed"),
    ],
)
def test_half_of_a_setting_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Settings(**given)  # type: ignore[arg-type]


def test_every_security_setting_arrives_where_it_is_used() -> None:
    settings = Settings(
        tls_cert=Path("c"),
        tls_key=Path("k"),
        tls_client_ca=Path("ca"),
        tokens_file=Path("t"),
        access_file=Path("a"),
        oidc_issuer="https://i",
        oidc_audience="f",
        oidc_jwks="https://i/keys",
        oidc_groups_claim="roles",
        oidc_leeway_s=5,
    )
    files = security_files(settings)

    assert files.tls is not None
    assert files.oidc is not None
    assert (Path("c"), Path("k"), Path("ca")) == files.tls.all
    assert (Path("t"), Path("a")) == (files.tokens, files.access)
    assert ("https://i", "f", "https://i/keys", "roles", 5) == (
        files.oidc.issuer,
        files.oidc.audience,
        files.oidc.jwks,
        files.oidc.groups_claim,
        files.oidc.leeway_s,
    )
    assert security_files(Settings()).tls is None


def test_limits_of_the_api_are_settings() -> None:
    limits = api_limits(
        Settings(
            api_rate_per_caller_qps=1,
            api_rate_per_caller_burst=2,
            api_calls_per_caller_max=3,
            api_streams_per_caller_max=4,
            api_streams_max=5,
            api_message_bytes_max=65_536,
            api_unary_deadline_s=7,
            api_connection_age_max_s=80,
        )
    )

    assert (1, 2, 3, 4, 5, 65_536, 7, 80) == (
        limits.rate_per_caller_qps,
        limits.rate_per_caller_burst,
        limits.calls_per_caller_max,
        limits.streams_per_caller_max,
        limits.streams_max,
        limits.message_bytes_max,
        limits.unary_deadline_s,
        limits.connection_age_max_s,
    )


def test_model_folders_are_the_data_and_the_working_folder_unless_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (tmp_path / ".forecrest", tmp_path) == Settings(model_roots="").model_folders
    monkeypatch.chdir("/")
    assert (Path("/.forecrest"),) == Settings(model_roots="").model_folders
    assert (Path("/models"), tmp_path / "x") == Settings(model_roots=f"/models:{tmp_path}/x").model_folders


def test_a_model_file_outside_of_its_folders_is_refused_however_it_is_written(tmp_path: Path) -> None:
    inside, outside = tmp_path / "models", tmp_path / "secrets"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "m.onnx").write_text("x")
    (inside / "link.onnx").symlink_to(outside / "m.onnx")

    assert inside / "m.onnx" == model_path(str(inside / "m.onnx"), (inside,))
    assert outside / "m.onnx" == model_path(str(outside / "m.onnx"), None)
    for path in (
        outside / "m.onnx",
        inside / "link.onnx",
        inside / ".." / "secrets" / "m.onnx",
        tmp_path / "models-of-others" / "m.onnx",
        Path("/etc/passwd"),
        Path("~/m.onnx"),
    ):
        with pytest.raises(ValueError, match="FORECREST_MODEL_ROOTS"):
            model_path(str(path), (inside,))
