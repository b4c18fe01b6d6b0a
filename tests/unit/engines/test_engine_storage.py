"""One contract for every place the catalogue may keep its files."""

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.errors import EngineError, EngineInputError, MissingPackageError
from engines.storage import SMALL_MAX_BYTES, FsspecStorage, LocalStorage, Storage, open_storage


@pytest.fixture(params=["folder", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "folder":
        yield open_storage(str(tmp_path / "root"))
        return
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    made = open_storage(f"memory://{uuid.uuid4().hex}")
    yield made
    made.remove("a")


def test_a_file_is_created_once_and_read_back(storage: Storage, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"engine")
    storage.create("a/b/text", b"one")
    storage.create("a/b/big", big)

    with pytest.raises(FileExistsError):
        storage.create("a/b/text", b"two")
    with pytest.raises(FileExistsError):
        storage.create("a/b/big", big)
    assert storage.read("a/b/text") == b"one"
    storage.fetch("a/b/big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"engine"
    assert storage.names("a/b") == ["big", "text"]
    assert storage.names("a") == ["b"]


def test_what_is_not_there_is_said(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read("a/nothing")
    with pytest.raises(FileNotFoundError):
        storage.fetch("a/nothing", tmp_path / "copy")
    assert storage.names("a/nothing") == []
    storage.remove("a/nothing")
    assert [] == list(tmp_path.glob("*copy*"))


def test_a_removed_folder_is_gone_and_may_come_back(storage: Storage) -> None:
    storage.create("a/b/c", b"1")
    storage.remove("a/b")

    assert storage.names("a/b") == []
    storage.create("a/b/c", b"2")
    assert storage.read("a/b/c") == b"2"


def test_of_many_writers_exactly_one_creates_a_file(storage: Storage) -> None:
    gate = threading.Barrier(8)
    won: list[int] = []

    def write(number: int) -> None:
        gate.wait()
        try:
            storage.create("a/contested", str(number).encode() * 1000)
            won.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 1 == len(won)
    assert storage.read("a/contested") == str(won[0]).encode() * 1000


@pytest.mark.parametrize("path", ["../up", "a/../../up", "/etc/passwd", ""])
def test_paths_stay_below_the_root(storage: Storage, path: str) -> None:
    with pytest.raises(EngineInputError, match="leaves the catalogue"):
        storage.create(path, b"")


def test_a_record_that_is_far_too_large_is_not_read(storage: Storage, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(SMALL_MAX_BYTES + 1)
    storage.create("a/large", large)

    with pytest.raises(EngineError, match="is larger than"):
        storage.read("a/large")


def test_a_broken_write_leaves_nothing(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)

    with pytest.raises(EngineError, match="cannot be written"):
        storage.create("a/b", tmp_path / "no such source")
    assert [] == storage.names("a")
    assert [] == list((tmp_path / "a").iterdir())


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    assert isinstance(open_storage(f"file://{tmp_path}"), LocalStorage)


def test_a_url_whose_package_is_missing_names_the_remedy() -> None:
    with pytest.raises((MissingPackageError, EngineInputError), match="no-such-scheme"):
        FsspecStorage("no-such-scheme://bucket")


def test_a_store_that_replaces_files_is_refused_before_the_first_write() -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    from fsspec.implementations.memory import MemoryFileSystem

    class Careless(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
        protocol = "careless"

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: object) -> None:
            super().pipe_file(path, value, mode="overwrite", **more)

    fsspec.register_implementation("careless", Careless, clobber=True)
    storage = open_storage(f"careless://{uuid.uuid4().hex}")

    with pytest.raises(EngineError, match="replaces files that are to be created"):
        storage.create("a/b", b"1")
    assert [] == storage.names("a")
