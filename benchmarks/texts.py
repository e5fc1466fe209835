"""Texts for ``favorbench model`` and ``recommend --model``, from the files of a Debian system and of Python.

    python -m benchmarks.texts texts           # texts/doc-compound.txt, ..., texts/licence-MPL-2.0.txt, ...
    python -m benchmarks.texts kinds --kinds   # kinds/prose.txt, kinds/code.txt and kinds/documentation.txt
    python -m benchmarks.texts long --kinds long

The topics of Python's ``help``, which change with Python's version (the manifest of a study has the digest of each),
and the licences of the Debian package base-files. Those of fewer than ``--least`` characters are left out. With
``--kinds`` one file of each kind, equally long: the licences, the standard library's modules, the topics. ``--kinds
long`` adds the release notes of Debian packages, the standard library's packages, and the docstrings of numpy.
"""

import argparse
import gzip
import inspect
import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from favorbench.numerics.streams import stream

LICENCES = Path("/usr/share/common-licenses")
#: Packages of every Debian system that have release notes; images without /usr/share/doc lack them.
NOTED = ("bash", "coreutils", "diffutils", "e2fsprogs", "findutils", "grep", "gzip", "sed", "tar")
#: Folders of the standard library whose files are tests, texts of another kind, or not of the library.
NOT_CODE = {"test", "tests", "idle_test", "pydoc_data", "site-packages", "dist-packages"}


def _sources(licences: dict[str, str], is_long: bool) -> dict[str, dict[str, str]]:
    """The texts of each kind, by name."""
    library = Path(argparse.__file__).parent
    paths = (path.relative_to(library) for path in library.glob("**/*.py" if is_long else "*.py"))
    modules = {str(path): path for path in paths if not NOT_CODE & {*path.parts}}
    code = {name.removesuffix(".py"): (library / path).read_text("utf-8") for name, path in modules.items()}
    if not is_long:
        return {"prose": licences, "code": code, "documentation": topics}
    notes = {name: path for name in NOTED if (path := Path(f"/usr/share/doc/{name}/NEWS.gz")).exists()}
    prose = {name: gzip.decompress(path.read_bytes()).decode("utf-8", "replace") for name, path in notes.items()}
    docstrings = {name: inspect.getdoc(getattr(np, name)) or "" for name in np.__all__ if callable(getattr(np, name))}
    return {"prose": licences | prose, "code": code, "documentation": topics | docstrings}


def _kinds(kinds: dict[str, dict[str, str]]) -> dict[str, str]:
    """Prose, code and documentation in random order, cut to the characters of the shortest."""
    texts = {}
    for kind, parts in kinds.items():
        names = sorted(parts)
        texts[kind] = "\n\n".join(parts[names[i]] for i in stream(0, "kinds", kind).permutation(len(names)))
    least = min(map(len, texts.values()))
    return {kind: text[:least] for kind, text in texts.items()}


def main() -> int:
    """Write the texts; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.texts", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--least", type=int, default=4000, help="characters of the shortest (default: 4000)")
    parser.add_argument(
        "--kinds", nargs="?", const="short", choices=("short", "long"),
        help="three texts: prose, code, documentation; long: for texts of thousands of tokens",
    )  # fmt: skip
    options = parser.parse_args()
    paths = [path for path in sorted(LICENCES.glob("*")) if not path.is_symlink()]
    licences = {f"licence-{path.name}": path.read_text(encoding="utf-8") for path in paths}
    if not licences:
        print(f"{LICENCES} has no licences: the topics of Python's help alone", file=sys.stderr)
    single = {f"doc-{name}": text for name, text in topics.items()} | licences
    texts = _kinds(_sources(licences, options.kinds == "long")) if options.kinds and licences else single
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        if len(text) >= options.least:
            (options.folder / f"{name}.txt").write_text(text, encoding="utf-8")
            print(options.folder / f"{name}.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
