"""Checks besides those of twine and check-wheel-contents: versions, licences, data and the page that an index shows."""

import email
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

WHEEL = ("favorbench/py.typed", "favorbench/scenarios/quick.toml", "favorbench/scenarios/data/minilm-cc0.npz")


def main(dist: Path) -> None:
    """Print what is wrong with the wheel and the source distribution in a directory; exit 1 if anything is."""
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        page = email.message_from_bytes(archive.read(metadata))
    with tarfile.open(source) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    version = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]["version"]
    text, readme = str(page.get_payload()), Path("README.md").read_text("utf-8")
    shown = re.findall(r"!\[[^\]]*\]\((?!https?:)([^)]+)\)", readme)
    licences = [metadata.replace("METADATA", f"licenses/{name}") for name in page.get_all("License-File", [])]
    wrong = [
        *([] if page["Version"] == version else [f"the wheel has version {page['Version']}, pyproject.toml {version}"]),
        *([] if f"\nversion: {version}\n" in Path("CITATION.cff").read_text("utf-8") else ["CITATION.cff: version"]),
        *([] if f"## [{version}]" in Path("CHANGELOG.md").read_text("utf-8") else ["CHANGELOG.md: no such version"]),
        *(f"the wheel lacks {name}" for name in licences if name not in names),
        *([] if len(licences) == 3 else [f"{len(licences)} licence files instead of 3"]),
        *(f"the wheel lacks {name}" for name in WHEEL if name not in names),
        *(f"the source distribution lacks {name}, which README.md shows" for name in shown if name not in sources),
        *(f"the page links to {link}" for link in re.findall(r"\]\((?!https?:|#)([^)]+)\)", text)),
    ]
    print("\n".join(wrong) or f"version {version}, {len(licences)} licence files, {len(shown)} figures named")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
