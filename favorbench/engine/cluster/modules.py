"""The user's own modules that some specs need: files of a folder, found by the imports that are written in them."""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from favorbench.registry import split_list


def named(specs: Iterable[str]) -> set[str]:
    """What may be modules in specs: all that stands before a colon, so transforms too."""
    parts = [part for spec in specs for one in split_list(spec, "/") for part in split_list(one, ":")[:-1]]
    return {part.partition("(")[0].strip() for part in parts}


def sources(names: Iterable[str], folder: Path) -> dict[str, bytes]:
    """The files of a folder that these modules are made of, and those of that folder that they import.

    By their paths below it. A package is all its .py files. What is imported by a name that is only computed is not
    seen, nor are files that are no modules.
    """
    found: dict[str, bytes] = {}
    waiting = list(names)
    while waiting:
        top = waiting.pop().partition(".")[0]
        for path in _files(folder, top):
            place = path.relative_to(folder).as_posix()
            if place not in found:
                found[place] = path.read_bytes()
                waiting += _imported(found[place])
    return found


def _files(folder: Path, top: str) -> list[Path]:
    if top == "favorbench" or not top.isidentifier():
        return []
    if (folder / top / "__init__.py").exists():
        return sorted((folder / top).rglob("*.py"))
    return [path for path in [folder / f"{top}.py"] if path.exists()]


def _imported(source: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # its import says so, in whatever process
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def installed(names: Iterable[str], travelling: Iterable[str]) -> dict[str, str]:
    """SHA-256 of the modules that are imported here from elsewhere, and so must be the same on every worker."""
    there = {Path(place).parts[0].removesuffix(".py") for place in travelling}
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return {
        name: hashlib.sha256(Path(file).read_bytes()).hexdigest()
        for name, file in sorted(files.items())
        if file and name.partition(".")[0] not in there
    }
