"""Texts for ``favorbench model`` and ``recommend --model``, from the files of a Debian system and of Python.

    python -m benchmarks.texts texts           # texts/doc-compound.txt, ..., texts/licence-MPL-2.0.txt, ...
    python -m benchmarks.texts kinds --kinds   # kinds/prose.txt, kinds/code.txt and kinds/documentation.txt

The topics of Python's ``help``, which change with Python's version (the manifest of a study has the digest of each),
and the licences of the Debian package base-files. Those of fewer than ``--least`` characters are left out. With
``--kinds`` one file of each kind, equally long: the licences, the standard library's modules, the topics.
"""

import argparse
import sys
from pathlib import Path
from pydoc_data.topics import topics

from favorbench.numerics.streams import stream

LICENCES = Path("/usr/share/common-licenses")


def _kinds(licences: dict[str, str]) -> dict[str, str]:
    """Prose, code and documentation in random order, cut to the characters of the shortest."""
    modules = {path.stem: path.read_text("utf-8") for path in sorted(Path(argparse.__file__).parent.glob("*.py"))}
    kinds = {"prose": licences, "code": modules, "documentation": topics}
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
    parser.add_argument("--kinds", action="store_true", help="three long texts: prose, code, documentation")
    options = parser.parse_args()
    paths = [path for path in sorted(LICENCES.glob("*")) if not path.is_symlink()]
    licences = {f"licence-{path.name}": path.read_text(encoding="utf-8") for path in paths}
    if not licences:
        print(f"{LICENCES} has no licences: the topics of Python's help alone", file=sys.stderr)
    single = {f"doc-{name}": text for name, text in topics.items()} | licences
    texts = _kinds(licences) if options.kinds and licences else single
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        if len(text) >= options.least:
            (options.folder / f"{name}.txt").write_text(text, encoding="utf-8")
            print(options.folder / f"{name}.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
