"""The real heads that ship with favorbench: one entry for each file of scenarios/data."""

from pathlib import Path
from typing import NamedTuple

from favorbench.files import data_directory


class Shipped(NamedTuple):
    """A file of scenarios/data, whose README.md has source, licence and hash, and what is in it."""

    file: str
    description: str

    @property
    def path(self) -> Path:
        """Where the file is."""
        return data_directory() / "data" / self.file


SHIPPED = {
    "minilm": Shipped(
        "minilm-cc0.npz", "four real heads of all-MiniLM-L6-v2 on 512 tokens (L0H1, L0H5, L5H0, L5H8), d = 32"
    ),
}
