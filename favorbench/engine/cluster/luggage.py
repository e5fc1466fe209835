"""What travels to workers that share no files with us: the work, files of inputs, users' modules."""

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import io
import os
import pickle
import platform
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from favorbench.engine.cluster import modules
from favorbench.engine.provenance import machine
from favorbench.errors import WorkerError
from favorbench.formats import format_bytes
from favorbench.inputs.fixed import File
from favorbench.numerics.backend import Backend
from favorbench.numerics.machine import scipy_linalg
from favorbench.users import importable_from

#: Bytes of files of inputs that are sent to every worker; more must be where workers can read them, at the same path.
MOST = 256 << 20


class Luggage(NamedTuple):
    """Bytes for every worker, by a name that says which."""

    name: str
    data: bytes


class Opened(NamedTuple):
    """What a worker has of it: the work, and what this worker is."""

    work: Any
    worker: Mapping[str, Any]


def packed(work: Any, specs: Iterable[str], backend: Backend) -> Luggage:
    """Any object that can be pickled, with the files that it reads and the modules of the user's that it is made of.

    specs: of members, where modules of the user's are named. They are looked for in the working directory.
    """
    files: list[File] = []
    stream = io.BytesIO()
    _Pickler(stream, files).dump(work)
    named = modules.named(specs)
    sources = modules.sources(named, Path.cwd())
    size = sum(path.stat().st_size for file in files for path in _parts(file))
    contents = {
        "work": stream.getvalue(),
        "files": [_packed_file(file, size > MOST) for file in files],
        "sources": sources,
        "installed": modules.installed(named, sources),
        "versions": versions(backend),
        "backend": tuple(vars(backend).values()),
    }
    data = pickle.dumps(contents)
    return Luggage(f"favorbench-{hashlib.sha256(data).hexdigest()[:16]}", data)


class _Pickler(pickle.Pickler):
    """Files of inputs go beside what is pickled: a worker has them elsewhere."""

    def __init__(self, stream: io.BytesIO, files: list[File]) -> None:
        super().__init__(stream)
        self._files = files

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        if not isinstance(obj, File):
            return None
        if obj not in self._files:
            self._files.append(obj)
        return "file", self._files.index(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, files: list[File]) -> None:
        super().__init__(io.BytesIO(data))
        self._files = files

    def persistent_load(self, pid: Any) -> File:
        return self._files[pid[1]]


def _parts(file: File) -> list[Path]:
    path = Path(file.path)
    return sorted(path.glob("*.npy")) if path.is_dir() else [path]


def _packed_file(file: File, too_large: bool) -> dict[str, Any]:
    """What a worker makes the same File of; without its numbers where they are too many."""
    path = Path(file.path)
    contents = None if too_large else {part.name: part.read_bytes() for part in _parts(file)}
    return {
        "path": str(path.resolve()), "folder": path.is_dir(), "label": file.title, "layout": file.layout,
        "digest": file.digest(), "contents": contents,
    }  # fmt: skip


def versions(backend: Backend) -> dict[str, str]:
    """Of what makes the numbers, here. favorbench's own with a piece of the digest of its files."""
    names = ("numpy", "scipy", *(["torch"] if backend.name == "torch" else []))
    own = f"{importlib.metadata.version('favorbench')} (files {_own_files()})"
    return {"favorbench": own} | {name: importlib.metadata.version(name) for name in names}


@functools.cache
def _own_files() -> str:
    package, found = Path(__file__).resolve().parents[2], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:8]


_LOCK = threading.Lock()
_OPENED: dict[str, Opened] = {}
_FOLDERS: list[str] = []  # of modules that came with luggage, the newest first
KEPT = 4  # pieces of luggage that a process keeps open


def opened(name: str, folder: str) -> Opened:
    """In a worker: what is in the luggage that lies in ``folder``; once for each process.

    Raises WorkerError where this worker differs from us in what makes the numbers.
    """
    with _LOCK:  # workers may have several threads
        if name not in _OPENED:
            _OPENED[name] = _open(pickle.loads(Path(folder, name).read_bytes()), folder)
            for oldest in list(_OPENED)[:-KEPT]:
                del _OPENED[oldest]
        return _OPENED[name]


def _open(contents: Mapping[str, Any], folder: str) -> Opened:
    backend = Backend(*contents["backend"])
    _compare(contents["versions"], versions(backend))
    place = Path(tempfile.mkdtemp(prefix="favorbench-", dir=folder))
    for relative, source in contents["sources"].items():
        _write(place / "modules" / relative, source)
    files = [_opened_file(packed, place / str(i)) for i, packed in enumerate(contents["files"])]
    _forget({Path(relative).parts[0].removesuffix(".py") for relative in contents["sources"]})
    with importable_from(str(place / "modules")):
        _compare(contents["installed"], {name: _source_digest(name) for name in contents["installed"]})
        work = _Unpickler(contents["work"], files).load()
    _FOLDERS.insert(0, str(place / "modules"))
    sys.path[:] = [*(path for path in sys.path if path not in _FOLDERS), *_FOLDERS]  # for what is imported later
    scipy_linalg()  # brings a BLAS of its own, to be named too
    about = {"host": socket.gethostname(), "python": platform.python_version(), **machine(backend)}
    about["blas"] = sorted(about["blas"], key=lambda pool: sorted(pool.items()))  # the order is that of their loading
    return Opened(work, about)


def _compare(ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    for name, here in ours.items():
        if theirs[name] != here:
            raise WorkerError(f"{name} {theirs[name]} there, {here} here; install the same on every worker")


def _source_digest(name: str) -> str:
    try:
        origin = getattr(importlib.util.find_spec(name), "origin", None)
        return hashlib.sha256(Path(origin).read_bytes()).hexdigest() if origin else "is not installed"
    except (ImportError, OSError):
        return "is not installed"


def _forget(tops: set[str]) -> None:
    """Modules of these names are those of other luggage: a worker outlives many runs."""
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _opened_file(packed: Mapping[str, Any], place: Path) -> File:
    path = packed["path"]
    if packed["contents"] is not None:
        for name, data in packed["contents"].items():
            _write(place / name, data)
        path = str(place) if packed["folder"] else str(place / next(iter(packed["contents"])))
    file = File(path, packed["label"], packed["layout"])
    if packed["contents"] is None and (not os.path.exists(path) or file.digest() != packed["digest"]):
        raise WorkerError(
            f"{path} is not there, or is another file; inputs of more than {format_bytes(MOST)} do not travel: "
            "put them where every worker can read them, at the same path"
        )
    return file


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
