"""Examples that are made once, and catalogues to build them into."""

from pathlib import Path

import pytest

from engines.catalog import Catalog
from engines.examples import EXAMPLE_NAMES, Example, make_example
from tests.integration.engines.workshop import Workshop


@pytest.fixture(scope="session")
def examples() -> dict[str, Example]:
    return {name: make_example(name, calibration_count=256, validation_count=256) for name in EXAMPLE_NAMES}


@pytest.fixture
def workshop(examples: dict[str, Example], tmp_path: Path) -> Workshop:
    return Workshop(Catalog(tmp_path / "catalog"), examples, tmp_path)


@pytest.fixture(scope="session")
def shared_workshop(examples: dict[str, Example], tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """For tests that only add."""
    folder = tmp_path_factory.mktemp("engines")
    return Workshop(Catalog(folder / "catalog"), examples, folder)
