"""Texts for ``favorbench model``, from what a Debian system and Python bring along, a file each.

    python -m benchmarks.texts texts        # texts/doc-compound.txt, ..., texts/licence-MPL-2.0.txt, ...

The topics of Python's ``help``, which change with Python's version (the manifest of a study has the digest of each),
and the licences of the Debian package base-files. Those of fewer than ``--least`` characters are left out.
"""

import argparse
import sys
from pathlib import Path
from pydoc_data.topics import topics

LICENCES = Path("/usr/share/common-licenses")


def main() -> int:
    """Write the texts; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.texts", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--least", type=int, default=4000, help="characters of the shortest (default: 4000)")
    asked = parser.parse_args()
    found = {f"doc-{name}": text for name, text in topics.items()}
    licences = [path for path in sorted(LICENCES.glob("*")) if not path.is_symlink()]
    found |= {f"licence-{path.name}": path.read_text(encoding="utf-8") for path in licences}
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        if len(text) >= asked.least:
            (asked.folder / f"{name}.txt").write_text(text, encoding="utf-8")
            print(asked.folder / f"{name}.txt")
    if not licences:
        print(f"{LICENCES} has no licences: the topics of Python's help alone", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
