"""Objects as files: the blocking calls under FilesystemStore, and why they are safe.

Layout: object `a/b` is the file `<root>/a/b`. `<root>/.tidelog/` holds temporary files and locks.
Listings skip it and ext4's `lost+found`. An object's file is never modified: it is created whole,
or replaced.

Create (put-if-absent):

- Write a file without a name (O_TMPFILE), fdatasync it, `link()` it to its name, fsync the
  directory. The kernel lets one link win between threads, processes and containers of a machine.
- An unnamed file saves two directory changes over a temporary name, and a crash leaves nothing to
  sweep. Where the system lacks unnamed files, a temporary file is linked and unlinked.

Replace (put, put-if-match): write a temporary file, fdatasync it, compare the version and
`rename()` under an exclusive `flock` of the key's stripe, fsync the directory. Deletes take the
same lock. Creates need no lock: they succeed only where no file exists, and the other operations
compare only where a file exists.

Versions (etags) are inode number, size and modification time, so no get reads extra bytes:

- Two objects that exist at once differ in the inode number.
- The system may reuse a number after a replace. So each replace, under the lock, sets a
  modification time above the replaced one: replaces never repeat a version of a name.
- After a delete the next version has its writer's time, random below the millisecond.
- Copying the files elsewhere gives them new etags, which no client holds yet.

Directories: an entry is durable once its directory is synced. So before a process first uses a
directory, it creates the missing directories and syncs all directories above. It also syncs those
that exist: their creator may not have synced them yet. Empty directories stay.

A refused put syncs the directory too, so that the loser may rely on the winning object. A reader
may otherwise see a put whose directory entry is still being synced. File systems with an ordered
metadata journal (ext4, xfs) make it durable before any later write of the reader.

If a sync fails after the object became visible, the disk's content is unknown and a second sync
proves nothing. That put's outcome is unknown, and this Directory refuses all further work. The
directory is open before that, so a lack of file descriptors is not such a failure.

The file system must support hard links, flock, and modification times in nanoseconds. The first
write tests links and times. Network file systems are not supported: their caches make version
comparisons unsafe.
"""

# Plain system calls on strings: every put takes this path.
# ruff: noqa: PTH102, PTH104, PTH108, PTH112, PTH116, PTH120, PTH123

from __future__ import annotations

import errno
import fcntl
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from tidelog.storage.object_store import (
    RESERVED_DIRECTORIES,
    RESERVED_DIRECTORY,
    Buffer,
    ByteRange,
    Condition,
    IfMatch,
    ObjectMeta,
    ObjectNotFound,
    PreconditionFailed,
    StoredObject,
    StoreMisconfigured,
    StoreOutcomeUnknown,
    Suffix,
    clip,
)
from tidelog.storage.stores.files import (
    create_root,
    etag_of,
    link_file,
    meta_of,
    nothing_applied,
    read_error,
    read_fully,
    stat_or_none,
    sync_data,
    sync_directory,
    write_fully,
)

LEFTOVER_AGE_SECONDS = 600
"""Age at which temporary files are removed. If one is still in use, its put fails."""

_LOCK_STRIPES = 256
_KNOWN_DIRECTORIES_MAX = 100_000
_PROBE_FRACTION_NS = 123_456_789
_UNNAMED_FLAG = getattr(os, "O_TMPFILE", 0)
_REMEDY = "put the store on another file system, such as ext4 or xfs"


@dataclass(frozen=True, slots=True)
class Stamp:
    """The unique name of a write's temporary file, and the write's time."""

    name: str
    time_ns: int


class Directory:
    """The files of one store. Methods block and may be called from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)
        self._temporary = f"{self._root}/{RESERVED_DIRECTORY}/temporary"
        self._locks = f"{self._root}/{RESERVED_DIRECTORY}/locks"
        self._known: set[str] = set()
        self._opening = threading.Lock()
        self._open = False
        self._has_unnamed_files = False
        self._failure: str | None = None

    def read(self, key: str, byte_range: ByteRange | Suffix | None) -> StoredObject:
        """The object or a range of it."""
        self._refuse_after_failure(key)
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                if not S_ISREG(status.st_mode):
                    raise ObjectNotFound(key, "no such object")
                start, end = clip(byte_range, status.st_size)
                data = read_fully(descriptor, start, end)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise read_error(key, error) from error
        return StoredObject(data=data, size=status.st_size, etag=etag_of(status))

    def stat(self, key: str) -> ObjectMeta:
        self._refuse_after_failure(key)
        try:
            status = os.stat(self._path(key))
        except OSError as error:
            raise read_error(key, error) from error
        if not S_ISREG(status.st_mode):
            raise ObjectNotFound(key, "no such object")
        return meta_of(key, status)

    def create(self, key: str, data: list[Buffer], stamp: Stamp) -> str:
        """Put if absent, and return the etag."""
        path = self._path(key)
        with self._parent(key, stamp.time_ns) as parent:
            with self._written(key, data, stamp, named=False) as temporary:
                etag = etag_of(os.stat(temporary))
                try:
                    self._link(temporary, path)
                    won = True
                except FileExistsError:
                    if os.path.isdir(path):
                        raise
                    won = False
            self._sync_visible(key, parent)
        if not won:
            raise PreconditionFailed(key, "an object is there already")
        return etag

    def replace(
        self, key: str, data: list[Buffer], stamp: Stamp, condition: Condition | None
    ) -> str:
        """Put, unconditionally or if the version matches, and return the etag."""
        path = self._path(key)
        with self._parent(key, stamp.time_ns) as parent:
            with self._written(key, data, stamp, named=True) as temporary, self._locked(key):
                current = stat_or_none(path)
                holds = not isinstance(condition, IfMatch) or (
                    current is not None and etag_of(current) == condition.etag
                )
                if current is not None:
                    time_ns = max(stamp.time_ns, current.st_mtime_ns + 1)
                    os.utime(temporary, ns=(time_ns, time_ns))
                etag = etag_of(os.stat(temporary))
                if holds:
                    os.rename(temporary, path)
            self._sync_visible(key, parent)
        if not holds:
            raise PreconditionFailed(key, "the object is not the expected version")
        return etag

    def remove(self, keys: Sequence[str], now_ns: int) -> None:
        """Delete the objects; an absent key is no error. Each directory is synced once."""
        present: dict[str, list[str]] = {}
        for key in keys:
            self._refuse_after_failure(key)
            path = self._path(key)
            with nothing_applied(key):
                if stat_or_none(path) is not None:
                    present.setdefault(os.path.dirname(path), []).append(key)
        for first, *others in present.values():
            with self._parent(first, now_ns) as parent:
                try:
                    for key in (first, *others):
                        with nothing_applied(key), self._locked(key), suppress(FileNotFoundError):
                            os.unlink(self._path(key))
                finally:
                    self._sync_visible(first, parent)

    def walk(self, prefix: str, start_after: str) -> Iterator[ObjectMeta]:
        """The objects in key order.

        The walk reads a directory when it reaches it, and skips directories whose keys all lie
        outside `prefix` or at or below `start_after`.
        """
        self._refuse_after_failure(prefix)
        parent, separator, _ = prefix.rpartition("/")
        yield from self._walk(parent + separator, prefix, start_after)

    def _walk(self, parent: str, prefix: str, start_after: str) -> Iterator[ObjectMeta]:
        try:
            with os.scandir(self._path(parent)) as entries:
                children = sorted(
                    (
                        child
                        for child in map(partial(_child, parent), entries)
                        if _may_hold(child, prefix, start_after)
                    ),
                    key=os.fsencode,
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise read_error(parent, error) from error
        for child in children:
            if child.endswith("/"):
                yield from self._walk(child, prefix, start_after)
            elif (meta := self._meta_or_none(child)) is not None:
                yield meta

    def _meta_or_none(self, key: str) -> ObjectMeta | None:
        try:
            status = stat_or_none(self._path(key))
        except OSError as error:
            raise read_error(key, error) from error
        return None if status is None else meta_of(key, status)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextmanager
    def _parent(self, key: str, now_ns: int) -> Iterator[int]:
        """The open descriptor of the object's directory, which is created if missing.

        It is open before the object becomes visible, so the later sync needs no new descriptor.
        """
        self._refuse_after_failure(key)
        directory = os.path.dirname(self._path(key))
        with nothing_applied(key):
            self._ensure_open(key, now_ns)
            self._ensure_directory(directory)
            try:
                descriptor = _open_directory(directory)
            except FileNotFoundError:
                # The directory was removed.
                self._known.clear()
                self._ensure_directory(directory)
                descriptor = _open_directory(directory)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _written(self, key: str, data: list[Buffer], stamp: Stamp, *, named: bool) -> Iterator[str]:
        """The path of a durable temporary file with the data; removed on exit.

        The path can be linked, or renamed if `named` is set. Inside the context, a system error
        means that the put was not applied.
        """
        with nothing_applied(key):
            if self._has_unnamed_files and not named:
                with _unnamed_file(self._temporary) as descriptor:
                    _fill(descriptor, data, stamp)
                    yield _path_of(descriptor)
                return
            temporary = f"{self._temporary}/{stamp.name}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o666)
            try:
                try:
                    _fill(descriptor, data, stamp)
                finally:
                    os.close(descriptor)
                yield temporary
            finally:
                # The object may be visible by now, so this must not fail. The sweep removes the
                # rest.
                with suppress(OSError):
                    os.unlink(temporary)

    def _link(self, temporary: str, path: str) -> None:
        try:
            link_file(temporary, path)
        except FileNotFoundError:
            # The directory was removed after it was opened, or the sweep removed the temporary
            # file.
            self._known.clear()
            raise

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        # Each holder opens the file anew: flock excludes open files, not threads.
        descriptor = self._open_lock(zlib.crc32(key.encode()) % _LOCK_STRIPES)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _open_lock(self, stripe: int) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        return os.open(f"{self._locks}/{stripe:03d}", flags, 0o666)

    def _sync_visible(self, key: str, parent: int) -> None:
        try:
            os.fsync(parent)
        except OSError as error:
            self._failure = (
                f"{os.path.dirname(self._path(key))} could not be synced ({error.strerror}), so the"
                " disk may have lost what was written to it; check the disk, then restart"
            )
            raise StoreOutcomeUnknown(key, self._failure) from error

    def _refuse_after_failure(self, key: str) -> None:
        if self._failure is not None:
            raise StoreMisconfigured(key, self._failure)

    def _ensure_directory(self, directory: str) -> None:
        if directory in self._known:
            return
        if len(self._known) >= _KNOWN_DIRECTORIES_MAX:
            self._known.clear()
        parent = os.path.dirname(directory)
        if directory == self._root:
            create_root(directory)
        else:
            self._ensure_directory(parent)
            with suppress(FileExistsError):
                os.mkdir(directory)
            sync_directory(parent)
        self._known.add(directory)

    def _ensure_open(self, key: str, now_ns: int) -> None:
        """Before the first change: create `.tidelog` and the locks, test the file system, sweep."""
        if self._open:
            return
        with self._opening:
            if self._open:
                return
            root = stat_or_none(self._root)
            if root is not None and not S_ISDIR(root.st_mode):
                raise StoreMisconfigured(key, f"{self._root} is a file; a store is a directory")
            self._ensure_directory(self._temporary)
            self._ensure_directory(self._locks)
            self._try_file_system(key, now_ns)
            # A full disk may have no room for a lock's file, and a delete needs it to make room.
            for stripe in range(_LOCK_STRIPES):
                os.close(self._open_lock(stripe))
            self._sweep(now_ns)
            self._open = True

    def _try_file_system(self, key: str, now_ns: int) -> None:
        # Use the current time: another process that opens the store sweeps older files.
        time_ns = now_ns - now_ns % 1_000_000_000 + _PROBE_FRACTION_NS
        first = f"{self._temporary}/probe-{os.getpid()}-{id(self)}"
        second = f"{first}-link"
        try:
            with open(first, "wb") as file:
                os.utime(file.fileno(), ns=(time_ns, time_ns))
            if os.stat(first).st_mtime_ns != time_ns:
                why = f"the file system of {self._root} does not keep times in nanoseconds"
                raise StoreMisconfigured(key, f"{why}; {_REMEDY}")
            try:
                link_file(first, second)
            except OSError as error:
                if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}:
                    raise
                why = f"the file system of {self._root} makes no hard links ({error.strerror})"
                raise StoreMisconfigured(key, f"{why}; {_REMEDY}") from error
        finally:
            for path in (first, second):
                with suppress(FileNotFoundError):
                    os.unlink(path)
        self._has_unnamed_files = self._try_unnamed_file(second)

    def _try_unnamed_file(self, path: str) -> bool:
        """True if the file system can create and link an unnamed file. Leaves nothing at `path`.

        NFS and old kernels lack unnamed files, and the link needs /proc.
        """
        if not _UNNAMED_FLAG:
            return False
        try:
            with _unnamed_file(self._temporary) as descriptor:
                link_file(_path_of(descriptor), path)
        except OSError:
            return False
        os.unlink(path)
        return True

    def _sweep(self, now_ns: int) -> None:
        """Remove the temporary files of dead processes.

        A slow put that loses its file is not applied.
        """
        oldest_ns = now_ns - LEFTOVER_AGE_SECONDS * 1_000_000_000
        with os.scandir(self._temporary) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime_ns < oldest_ns:
                        os.unlink(entry.path)


def _open_directory(directory: str) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


@contextmanager
def _unnamed_file(directory: str) -> Iterator[int]:
    """The descriptor of an unnamed file on the directory's file system.

    Closing it deletes the file unless it was linked.
    """
    descriptor = os.open(directory, os.O_WRONLY | _UNNAMED_FLAG | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        # The file is already durable or not applied, so an error here adds nothing.
        with suppress(OSError):
            os.close(descriptor)


def _path_of(descriptor: int) -> str:
    """The path by which an open unnamed file can be linked."""
    return f"/proc/self/fd/{descriptor}"


def _fill(descriptor: int, data: list[Buffer], stamp: Stamp) -> None:
    write_fully(descriptor, data)
    os.utime(descriptor, ns=(stamp.time_ns, stamp.time_ns))
    sync_data(descriptor)


def _child(parent: str, entry: os.DirEntry[str]) -> str:
    """The entry's key. A directory's ends in `/`, which also sorts it in key order."""
    return f"{parent}{entry.name}/" if entry.is_dir() else f"{parent}{entry.name}"


def _may_hold(child: str, prefix: str, start_after: str) -> bool:
    if not child.endswith("/"):
        return child > start_after and child.startswith(prefix)
    if child.removesuffix("/") in RESERVED_DIRECTORIES:
        return False
    return (child >= start_after or start_after.startswith(child)) and (
        child.startswith(prefix) or prefix.startswith(child)
    )
