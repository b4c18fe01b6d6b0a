"""Where the catalogue keeps its files: a local folder, or anything `fsspec` reaches (S3, memory, …).

Promises: `create` makes a file complete or not at all and never replaces one, which is all that the
catalogue needs for concurrent writers. Refuses paths that leave the root. Called by the catalogue.
"""

import contextlib
import importlib
import os
import secrets
import shutil
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from engines.errors import EngineError, EngineInputError, MissingPackageError

SMALL_MAX_BYTES = 16 * 1024**2  # records, reports and signatures; engines are copied, not read


class Storage(Protocol):
    """A tree of files that never change. Paths are relative, with slashes."""

    location: str  # as the user wrote it

    def create(self, path: str, content: bytes | Path) -> None:
        """Write a new file, complete or not at all.

        Raises:
            FileExistsError: there is one already; it is left as it is.
            EngineError: it cannot be written.
        """
        ...

    def read(self, path: str) -> bytes:
        """Read a small file.

        Raises:
            FileNotFoundError: there is none.
            EngineError: it is larger than any file of the catalogue may be.
        """
        ...

    def fetch(self, path: str, target: Path) -> None:
        """Copy a file here; `target` is complete or absent.

        Raises:
            FileNotFoundError: there is none.
        """
        ...

    def names(self, path: str) -> list[str]:
        """Names of files and folders directly below, sorted; [] where there is nothing."""
        ...

    def remove(self, path: str) -> None:
        """Remove a folder with all below it; nothing happens where there is none."""
        ...


def open_storage(location: str) -> Storage:
    """Open a folder, or a URL such as s3://bucket/engines or memory://tests.

    Raises:
        MissingPackageError: the URL's scheme needs a package that is not installed.
    """
    scheme, found, rest = location.partition("://")
    if not found:
        return LocalStorage(Path(location))
    if scheme == "file":
        return LocalStorage(Path(rest))
    return FsspecStorage(location)


def _checked(path: str) -> str:
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or not parts:
        raise EngineInputError("catalog", f"path {path!r} leaves the catalogue", "report this as a fault")
    return path


class LocalStorage:
    """A folder of this machine or a file system it mounts."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.location = str(root)

    def _path(self, path: str) -> Path:
        return self._root / _checked(path)

    def create(self, path: str, content: bytes | Path) -> None:
        """See `Storage`. Written beside its place and linked there: a link never replaces a file."""
        target = self._path(path)
        fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("xb") as file:
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, file)
                file.flush()
                os.fsync(file.fileno())
            os.link(fresh, target)
        except FileExistsError:
            raise
        except OSError as error:
            raise EngineError(
                f"catalog: {target} cannot be written: {error}; use a folder that may be written and allows links."
            ) from error
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)

    def read(self, path: str) -> bytes:
        """See `Storage`."""
        try:
            with self._path(path).open("rb") as file:
                content = file.read(SMALL_MAX_BYTES + 1)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise EngineError(
                f"catalog: {self._path(path)} cannot be read: {error}; see its rights."
            ) from error
        if len(content) > SMALL_MAX_BYTES:
            raise EngineError(
                f"catalog: {path} is larger than {SMALL_MAX_BYTES} bytes; remove or restore it."
            )
        return content

    def fetch(self, path: str, target: Path) -> None:
        """See `Storage`."""
        fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            shutil.copyfile(self._path(path), fresh)
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)

    def names(self, path: str) -> list[str]:
        """See `Storage`. What is being written has a leading point and is left out."""
        try:
            return sorted(e.name for e in self._path(path).iterdir() if not e.name.startswith("."))
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        """See `Storage`."""
        shutil.rmtree(self._path(path), ignore_errors=True)


class FsspecStorage:
    """Anything fsspec has a file system for that can create a file exclusively.

    Not every backend can, and some ignore the wish and replace the file, which would lose an entry of a
    journal without a word. So it is tried before the first write.
    """

    def __init__(self, location: str) -> None:
        try:
            fsspec: Any = importlib.import_module("fsspec")
            self._files, self._root = fsspec.core.url_to_fs(location)
        except ImportError as error:
            raise MissingPackageError(
                f"the package for {location.partition('://')[0]}://",
                "this catalogue",
                f"install fsspec and its backend ({error})",
            ) from error
        except ValueError as error:
            raise EngineInputError(
                "catalog", f"{location!r}: {error}", "name a folder or s3://bucket/path"
            ) from error
        self._root = str(self._root).rstrip("/")
        self.location = location
        self._is_exclusive = False

    def _path(self, path: str) -> str:
        return f"{self._root}/{_checked(path)}"

    def create(self, path: str, content: bytes | Path) -> None:
        """See `Storage`."""
        target = self._path(path)
        if not self._is_exclusive:
            self._try_exclusive()
        # Folders mean nothing to object stores; the others need them.
        self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        # Read whole: the exclusive mode exists for whole contents only, and a plain upload would replace.
        data = content if isinstance(content, bytes) else content.read_bytes()
        self._files.pipe_file(target, data, mode="create")

    def _try_exclusive(self) -> None:
        probe = self._path(f"probes/{secrets.token_hex(8)}")
        self._files.makedirs(probe.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(probe, b"1", mode="create")
        try:
            self._files.pipe_file(probe, b"2", mode="create")
        except FileExistsError:
            self._is_exclusive = True
        finally:
            self._files.rm_file(probe)
        if not self._is_exclusive:
            raise EngineError(
                f"catalog: {self.location} replaces files that are to be created; use a folder, or a store "
                "whose fsspec backend creates exclusively, such as S3."
            )

    def read(self, path: str) -> bytes:
        """See `Storage`."""
        self._files.invalidate_cache()
        content: bytes = self._files.cat_file(self._path(path), start=0, end=SMALL_MAX_BYTES + 1)
        if len(content) > SMALL_MAX_BYTES:
            raise EngineError(
                f"catalog: {path} is larger than {SMALL_MAX_BYTES} bytes; remove or restore it."
            )
        return content

    def fetch(self, path: str, target: Path) -> None:
        """See `Storage`."""
        fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            self._files.get_file(self._path(path), str(fresh))
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)

    def names(self, path: str) -> list[str]:
        """See `Storage`."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._path(path), detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(entry).rstrip("/").rpartition("/")[2] for entry in found)

    def remove(self, path: str) -> None:
        """See `Storage`."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(self._path(path), recursive=True)
