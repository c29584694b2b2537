"""Where the files of a target lie: a directory, or a bucket of an S3-compatible store.

Paths are relative to the target and have slashes.  What is written is there as a whole or not at
all, and is durable when the call has returned: the database may drop what an archive holds.

A store that gives no answer, refuses our credentials or has no such bucket is *unavailable*: then
nothing is missing.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import MissingExtra, TargetUnavailable

#: How long an object store may take for one request, and for all attempts at it.
_REQUEST_SECONDS = 30
_ALL_ATTEMPTS_SECONDS = 60
_ATTEMPTS = 4


#: What turns the errors of an object store into ours.
Told = Callable[[], contextlib.AbstractContextManager[None]]


class Store(Protocol):
    """The files of a target."""

    def read(self, path: str) -> bytes | None:
        """A small file, None when there is none; TargetUnavailable when nobody can say."""

    def put_new(self, path: str, content: bytes) -> bool:
        """Make a small file; False when there is one already, which stays: one of two wins."""

    def size(self, path: str) -> int | None:
        """The size of a file, None when there is none; TargetUnavailable when nobody can say."""

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is no error."""

    def source(self, path: str) -> Any:
        """The file for Arrow to read from; OSError when it cannot be read."""

    def sink(self, path: str) -> contextlib.AbstractContextManager[Any]:
        """A new file for Arrow to write to; an error inside leaves none."""

    def make_durable(self, *paths: str) -> None:
        """Force small files that somebody else has written, and their folder, to the disk."""

    def uri(self, path: str) -> str:
        """The path for delta-rs and other readers."""

    @property
    def options(self) -> dict[str, str]:
        """What delta-rs needs to open it; it may hold secrets."""

    def told(self) -> contextlib.AbstractContextManager[None]:
        """What an object store says inside becomes TargetUnavailable, without our secrets."""


class LocalStore:
    """A directory that this machine and Spark's workers see."""

    def __init__(self, root: Path) -> None:
        """Take the directory; it may not be there yet."""
        self._root = root

    def read(self, path: str) -> bytes | None:
        """A small file."""
        try:
            return (self._root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unavailable(str(self._root), str(error)) from error

    def put_new(self, path: str, content: bytes) -> bool:
        """Make a small file: of two links with one name only one succeeds."""
        try:
            self._make_folder((self._root / path).parent)
            return self._put_new(self._root / path, content)
        except OSError as error:
            raise unavailable(str(self._root), str(error)) from error

    def _make_folder(self, place: Path) -> None:
        """A folder of the target; TargetUnavailable where a file stands in its place."""
        try:
            place.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            file = next(each for each in (place, *place.parents) if each.exists())
            raise TargetUnavailable(
                f"the archive target at {self._root} is not available: {file} is a file, and no "
                "directory",
                hint="name a directory in the policy file, or move the file away",
            ) from None

    @staticmethod
    def _put_new(place: Path, content: bytes) -> bool:
        is_new = True
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".new-") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            try:
                os.link(file.name, place)
            except FileExistsError:
                is_new = False
        _force(place.parent)
        return is_new

    def size(self, path: str) -> int | None:
        """The size of a file."""
        try:
            return (self._root / path).stat().st_size
        except OSError:
            return None

    def delete(self, path: str) -> None:
        """Remove a file."""
        (self._root / path).unlink(missing_ok=True)

    def source(self, path: str) -> Any:
        """Arrow opens the path itself."""
        return str(self._root / path)

    @contextlib.contextmanager
    def sink(self, path: str) -> Iterator[Any]:
        """Arrow writes to the path itself."""
        place = self._root / path
        self._make_folder(place.parent)
        try:
            yield str(place)
        except BaseException:
            place.unlink(missing_ok=True)  # the disk may be full: leave it as it was
            raise
        self.make_durable(path)
        _force(place.parent.parent)

    def make_durable(self, *paths: str) -> None:
        """Force files, then their folders."""
        places = [self._root / path for path in paths]
        for each in (*places, *{place.parent for place in places}):
            _force(each)

    def uri(self, path: str) -> str:
        """The path."""
        return str(self._root / path)

    @property
    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def told(self) -> contextlib.AbstractContextManager[None]:
        """Errors stay what they are."""
        return contextlib.nullcontext()


class ObjectStore:
    """A bucket, or a part of one; every put is whole and durable by itself."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        """Connect to nothing yet."""
        try:
            import obstore
            from obstore.store import S3Store
        except ModuleNotFoundError as error:
            raise MissingExtra.of("obstore", "obstore") from error
        self._uri = uri.rstrip("/")
        self._given = dict(options)
        given: Any = {name: value for name, value in options.items() if name != "allow_http"}
        self._obstore: Any = obstore
        client: Any = {
            "allow_http": options.get("allow_http", "") == "true",
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
        }
        retry: Any = {
            "max_retries": _ATTEMPTS,
            "retry_timeout": timedelta(seconds=_ALL_ATTEMPTS_SECONDS),
        }
        self._store = S3Store.from_url(
            self._uri, config=given, client_options=client, retry_config=retry
        )

    def read(self, path: str) -> bytes | None:
        """A small object."""
        with self.told():
            try:
                return bytes(self._obstore.get(self._store, path).bytes())
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None

    def put_new(self, path: str, content: bytes) -> bool:
        """Put an object only if there is none (a conditional put)."""
        with self.told():
            try:
                self._obstore.put(self._store, path, content, mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def size(self, path: str) -> int | None:
        """The size of an object."""
        with self.told():
            try:
                return int(self._obstore.head(self._store, path)["size"])
            except FileNotFoundError:
                # The reply to HEAD has no body that could name the bucket.
                next(iter(self._obstore.list(self._store, prefix=path)), None)
                return None

    def delete(self, path: str) -> None:
        """Remove an object."""
        with self.told(), contextlib.suppress(FileNotFoundError):
            self._obstore.delete(self._store, path)

    def source(self, path: str) -> Any:
        """A file that reads ranges of the object."""
        with self.told():
            return _StoreFile(self._obstore.open_reader(self._store, path), self.told)

    @contextlib.contextmanager
    def sink(self, path: str) -> Iterator[Any]:
        """A file whose parts are put together at the end: an error before that leaves none."""
        writer = self._obstore.open_writer(self._store, path)
        yield _Sink(writer, self.told)
        with self.told():
            writer.close()

    def make_durable(self, *paths: str) -> None:
        """They are."""

    def uri(self, path: str) -> str:
        """The address."""
        return f"{self._uri}/{path}"

    @property
    def options(self) -> dict[str, str]:
        """As they were given."""
        return dict(self._given)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """What a store says becomes TargetUnavailable, without the secrets that it may repeat."""
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise unavailable(self._uri, "there is no such bucket") from None
            raise FileNotFoundError(self._plain(str(error))) from None
        except (self._obstore.exceptions.BaseError, OSError) as error:
            raise unavailable(self._uri, self._plain(str(error))) from None

    def _plain(self, text: str) -> str:
        """The first line of an error, without what was given to us."""
        first = text.strip().splitlines()[0] if text.strip() else "no reason given"
        for value in self._given.values():
            if len(value) > 3 and "://" not in value:  # noqa: PLR2004
                first = first.replace(value, "***")
        return first[:500]


class _StoreFile(io.RawIOBase):
    """An object store's reader as Arrow expects a file."""

    def __init__(self, reader: Any, told: Told) -> None:
        self._reader = reader
        self._told = told

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        rest = int(self._reader.size) - int(self._reader.tell())
        wanted = rest if size is None or size < 0 else min(size, rest)
        with self._told():
            return bytes(self._reader.read(wanted)) if wanted else b""

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())


class _Sink(io.RawIOBase):
    """An object store's writer as Arrow expects a file; who opened it closes it."""

    def __init__(self, writer: Any, told: Told) -> None:
        self._writer = writer
        self._told = told
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        content = bytes(data)
        with self._told():
            self._writer.write(content)
        self._position += len(content)
        return len(content)

    def tell(self) -> int:
        return self._position


def unavailable(place: str, what: str) -> TargetUnavailable:
    """The error of a place that cannot be used now."""
    return TargetUnavailable(
        f"the archive target at {place} is not available: {what}",
        hint="mount it, or look at its address and credentials; nothing there counts as missing",
    )


def _force(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
