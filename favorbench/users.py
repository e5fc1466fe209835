"""Objects of users' modules: import them, and check them against our interfaces."""

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from favorbench.errors import EstimatorError, FavorbenchError, ScenarioError
from favorbench.formats import reason_of, shown


def import_object(kind: str, path: str) -> Any:
    """The object at "module:attribute", with the working directory importable meanwhile. Raises ScenarioError.

    The digest of a module is taken the first time: it may be edited before a run needs it.
    """
    module_name, _, attribute = path.partition(":")
    try:
        with importable_from(os.getcwd()):
            module = importlib.import_module(module_name)
            found = getattr(module, attribute)
    except (Exception, SystemExit) as error:  # a user's module may fail in any way; the error names it
        raise ScenarioError(f"{kind} {shown(path)} cannot be imported: {reason_of(error)}") from error
    if (spec := getattr(module, "__spec__", None)) and "favorbench_digests" not in vars(spec):
        with contextlib.suppress(OSError):  # of a zip archive
            module_digest(module_name)
    return found


#: Names of modules, with commas, that files may import even if they are not in the working directory.
TRUST_VARIABLE = "FAVORBENCH_TRUST"

#: The modules that a spec may name. Possessive, from the start of a word: linear in the length of the text.
BEFORE_COLON = re.compile(r"(?<![\w.-])([\w.-]++)\s*+:")


def check_trusted(specs: Iterable[str], file: str | Path, prefixes: Container[str] = ()) -> None:
    """Refuse modules that a file names, unless they are files of the working directory or the user trusts them.

    Importing a module runs it, and the file (a scenario, a run, a recommendation) may be somebody else's. prefixes:
    names before a colon that are modules only where the working directory has such ones. Raises ScenarioError.
    """
    trusted = os.environ.get(TRUST_VARIABLE, "").split(",")
    for spec in specs:
        for module in BEFORE_COLON.findall(spec):
            origin = getattr(PathFinder.find_spec(module, [""]), "origin", None)  # a package, rather than a .py file
            is_file_here = origin and origin == os.path.abspath(f"{module}.py")
            if is_file_here or module.partition(".")[0] in trusted or (module in prefixes and not origin):
                continue
            raise ScenarioError(
                f"{file}: {shown(spec)} would import {shown(module)}, not a .py file of the working directory; "
                f"if you trust the file, set {TRUST_VARIABLE}={shown(module.partition('.')[0])[1:-1]}"
            )


@contextlib.contextmanager
def importable_from(folder: str) -> Iterator[None]:
    """Put a folder first in sys.path, where a console script has its own, and a worker lacks the user's."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the module may have removed it
            sys.path.remove(folder)


def modules_here() -> list[ModuleType]:
    """The modules that were imported from the working directory."""
    folder, libraries = os.path.join(os.getcwd(), ""), os.path.dirname(os.__file__)
    return [
        module
        for module in [*sys.modules.values()]
        if (file := str(getattr(module, "__file__", None))).startswith(folder)
        and not file.startswith(libraries)
        and not _installed(Path(file))
        and module.__name__.partition(".")[0] not in ("__main__", "__mp_main__", "favorbench")
    ]


def _installed(file: Path) -> bool:
    """Whether a file is that of an installed package, also of one in an environment in the working directory."""
    return not {"site-packages", "dist-packages"}.isdisjoint(file.parts)


#: Those whose versions a run has, and which are never a user's, even where they are installed to be edited.
_LIBRARIES = ("favorbench", "numpy", "scipy", "torch", "transformers")

#: What the file of a module that is built, as from C++, may end in.
BUILT = tuple(EXTENSION_SUFFIXES)


def sources_of(name: str, file: Path, called: bool = True) -> dict[Path, tuple[Path, bytes]]:
    """The folder and source of a module, then those of its packages and of what they import, by path.

    From the same folder, or from elsewhere in sys.path, such as src; libraries do not count, unless they are installed
    to be edited. called: also what is imported when a function is called. Of an installed module, the files of its
    package alone: everything else that is installed lies beside it.
    """
    root = _root(name, file)
    sources, waiting = {file: (root, _contents(file))}, [file]
    if _installed(file):
        package = sorted((root / name.partition(".")[0]).rglob("*.py"))
        return sources | {path: (root, path.read_bytes()) for path in package}
    folder_of = functools.cache(_folder_of)  # a name stands in many files
    while waiting:
        importer = waiting.pop(0)
        root, source = sources[importer]
        folders, names = importer.relative_to(root).parts, [tuple(name.split("."))]
        imports = _imports(source, called)
        names += [(*folders[:-level], *parts) if level else parts for level, parts in imports]
        for parts in names:
            if parts[0] in _LIBRARIES:
                continue
            for folder in {root: None, folder_of(parts[0]) or root: None}:
                for path in (folder.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)):
                    for found in (*(path.with_name(path.name + end) for end in (".py", *BUILT)), path / "__init__.py"):
                        if found not in sources and found.is_file():
                            sources[found] = folder, _contents(found)
                            waiting.append(found)
    return sources


def _contents(file: Path) -> bytes:
    """The source of a module; of one that is built, whose file may be large, the digest."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest() if file.name.endswith(BUILT) else opened.read()


def _folder_of(name: str) -> Path | None:
    """The folder that a module or package is imported from; None if it is not there, installed, or of Python."""
    with contextlib.suppress(ImportError, ValueError, AttributeError):  # a module may hide where it is from
        if spec := importlib.util.find_spec(name):
            places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
            folder = Path(places[0]).parent
            if folder.is_absolute() and not _installed(folder) and not folder.is_relative_to(Path(os.__file__).parent):
                return folder
    return None


def module_digest(name: str) -> str | None:
    """SHA-256 of the source of a module and of what it imports, but for libraries; None without a file.

    Raises ScenarioError where one changed after its import. The digests that were seen first are kept with the
    specifications of the module and of what it imports. importlib.reload makes that of the module it is given anew.
    """
    module = importlib.import_module(name)
    path = getattr(module, "__file__", None)
    if name == "__main__" and not (path and Path(path).is_file()):  # a notebook, whose cells may change unnoticed
        raise ScenarioError("__main__ has no file: write the estimator into one, such as mine.py, and name mine:NAME")
    if not path:
        return None
    digests = {file: hashlib.sha256(source).hexdigest() for file, (_, source) in sources_of(name, Path(path)).items()}
    imported = {str(getattr(other, "__file__", None)): other for other in [*sys.modules.values()]}
    for file, digest in digests.items():
        for spec in (getattr(imported.get(str(file)), "__spec__", None), module.__spec__):
            if spec and vars(spec).setdefault("favorbench_digests", {}).setdefault(file, digest) != digest:
                first = "" if file == Path(path) else "that module, then "
                raise ScenarioError(
                    f"{file} has changed since Python imported it: importlib.reload {first}the module {name}, or start "
                    "Python again"
                )
    own, *others = digests.values()
    return hashlib.sha256("".join([own, *others]).encode()).hexdigest() if others else own


def imported_in_functions(name: str, file: Path) -> set[str]:
    """The modules that a module imports only when a function is called, but for libraries."""
    return _names_of(sources_of(name, file)) - _names_of(sources_of(name, file, called=False))


def imported_at_once(name: str, file: Path) -> set[str]:
    """A module, and those that it imports at once, but for libraries."""
    return _names_of(sources_of(name, file, called=False))


def _names_of(sources: dict[Path, tuple[Path, bytes]]) -> set[str]:
    """The names of the modules whose files ``sources_of`` gives."""
    places = (path.relative_to(folder) for path, (folder, _) in sources.items())
    return {".".join((*at.parts[:-1], at.name.partition(".")[0])).removesuffix(".__init__") for at in places}


def _root(name: str, file: Path) -> Path:
    """The folder from which a module is imported."""
    return [file.parent, *file.parents][: name.count(".") + (file.stem == "__init__") + 2][-1]


_IMPORTING = ("import_module", "__import__")  # functions that import what their first argument names


@functools.cache
def _imports(source: bytes, called: bool) -> list[tuple[int, tuple[str, ...]]]:
    """The names that a module imports, or may: the number of dots before each, and its parts."""
    names = list[tuple[int, tuple[str, ...]]]()
    with contextlib.suppress(SyntaxError, ValueError):  # of a file that is imported on another Python only
        tree = ast.parse(source)
        for node in () if called else [*ast.walk(tree)]:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                vars(node)["body"] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names += [(0, tuple(alias.name.split("."))) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                parts = node.module.split(".") if node.module else []
                names += [(node.level, (*parts, alias.name)) for alias in node.names]
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _IMPORTING:
                for text in (str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant)):
                    parts = text.lstrip(".")
                    names.append((len(text) - len(parts), tuple(parts.split("."))))
    return names


class _FilesHere:
    """Finds modules in the working directory once the user has named one there: it may import others later."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        with contextlib.suppress(OSError):  # the directory is gone
            if path is None and modules_here():
                return PathFinder.find_spec(name, [os.getcwd()])
        return None


def keep_importable_here() -> None:
    """For the rest of this process, let modules of the working directory that the user has named import others of it.

    Last, so that a user's file does not replace a library of its name. Nothing else is imported from there: the
    directory may be somebody else's, and libraries try to import others that are not installed.
    """
    if not any(isinstance(finder, _FilesHere) for finder in sys.meta_path):
        sys.meta_path.append(_FilesHere())


def check_methods(kind: str, spec: str, member: type, base: type) -> None:
    """Raise ScenarioError for a method of a user's class that cannot be called as those of ``base`` are.

    Parameters may have any names, but those with our names must be in our places.
    """
    for name, ours in inspect.getmembers(base, inspect.isfunction):
        theirs = getattr(member, name, ours)  # one that another map answers is not of the class
        if name.startswith("_") or theirs is ours or not inspect.isfunction(theirs):
            continue
        wanted, given = inspect.signature(ours), inspect.signature(theirs)
        places = {parameter: i for i, parameter in enumerate(given.parameters)}
        moved = any(places.get(parameter, i) != i for i, parameter in enumerate(wanted.parameters))
        try:
            given.bind(*wanted.parameters)
        except TypeError:
            moved = True
        if moved:
            ask, actual = (f"{name}({', '.join(signature.parameters)})" for signature in (wanted, given))
            raise ScenarioError(f"{kind} {shown(spec)}: write `def {ask}`, not `def {actual}`")


@contextlib.contextmanager
def failures_named(who: str) -> Iterator[None]:
    """Turn any failure of a user's map, sampler or method into an EstimatorError that names it."""
    try:
        yield
    except (MemoryError, FavorbenchError):
        raise
    except (Exception, SystemExit) as error:  # a function that calls sys.exit() ends neither a sweep nor a worker
        if type(error).__name__ == "OutOfMemoryError":  # of torch, on a GPU
            raise MemoryError("on the GPU: use a smaller `batch`") from None
        raise EstimatorError(f"{who} failed: {reason_of(error)}") from error


def stated_cost(name: str, cost: Callable[[], Any]) -> float | None:
    """The multiplications that an estimator states, None if it states none. Raises EstimatorError for anything else."""
    with failures_named(f"{name}: its multiplications"):
        stated = cost()
        number = None if stated is None else float(stated)
    if number is not None and not 0 <= number < math.inf:
        raise EstimatorError(f"{name}: its multiplications are {number:g}; allowed: a finite number from 0 on")
    return number
