"""Golden traces: `pytest tests/golden --rewrite-golden` writes them anew. Commit a rewrite only if you can explain each line."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="write golden traces anew instead of comparing"
    )


@pytest.fixture
def rewrite_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite-golden"))
