"""Sources of inputs: random distributions, and files of real queries, keys and values."""

from pathlib import Path

from favorbench.errors import ScenarioError
from favorbench.files import data_directory
from favorbench.formats import shown
from favorbench.inputs.base import Head, Inputs, InputSource, same_place
from favorbench.inputs.fixed import SHIPPED, Arrays, File, Fixed
from favorbench.inputs.heads import Layout
from favorbench.inputs.synthetic import Gaussian, Sphere
from favorbench.registry import build, nearest

#: A source is listed and accepted when it is here: by its name, or by the endings of the files that it reads.
INPUTS: tuple[type[InputSource], ...] = (Gaussian, Sphere, File)

InputLaw = InputSource  # its name in version 0.2


def get_input(spec: object, layout: Layout = "heads,L,d") -> InputSource:
    """The source that ``spec`` names: gaussian, gaussian(std=0.5), sphere, minilm, a path to .npz or .safetensors.

    Or a folder of .npy files. layout: the order of a file's axes. Raises ScenarioError for anything else.
    """
    named = [source for source in INPUTS if not source.suffixes]
    if not isinstance(spec, str):
        raise ScenarioError(f"`inputs`: a {type(spec).__name__} was given; allowed: {_allowed(named)}, as texts")
    if spec in SHIPPED:
        return File(str(SHIPPED[spec].path), label=spec).pinned()
    if spec.partition("(")[0].strip() in [source.name for source in named]:
        return build("input", spec, named, InputSource)
    if reader := reader_of(spec):
        return reader(spec, label=spec, layout=layout).pinned()  # pyright: ignore[reportCallIssue]
    if Path(spec).suffix.lower() in _CONVERTED:
        raise ScenarioError(f"{shown(spec)} cannot be read; {_CONVERTED[Path(spec).suffix.lower()]}")
    near = nearest(spec, [*(source.name for source in named), *SHIPPED])
    raise ScenarioError(f"unknown inputs {shown(spec)}{near}; allowed: {_allowed(named)}")


_SAVE = "save them in one file: np.savez('heads.npz', q=q, k=k, v=v)"

#: Files that are not read, and how to make one that is.
_CONVERTED = {
    ".npy": f"it has one array, and q, k and v are needed: {_SAVE}, or give their folder",
    **dict.fromkeys((".pt", ".pth"), f"reading a pickle runs its code: load q, k and v with torch, and {_SAVE}"),
}


def reader_of(spec: str) -> type[InputSource] | None:
    """The source that reads a file of this name, or a folder; None for other texts."""
    suffix = Path(spec).suffix.lower()
    reader = next((source for source in INPUTS if suffix in source.suffixes), None)
    try:
        return File if reader is None and Path(spec).is_dir() else reader
    except ValueError:  # a NUL in the text
        return None


def _allowed(named: list[type[InputSource]]) -> str:
    suffixes = " or ".join(suffix for source in INPUTS for suffix in source.suffixes)
    return ", ".join(
        [*(source.name for source in named), *SHIPPED, f"or a path ending in {suffixes}, or to a folder of .npy files"]
    )


__all__ = [
    "INPUTS", "SHIPPED", "Arrays", "File", "Fixed", "Head", "InputLaw", "InputSource", "Inputs", "Layout",
    "data_directory", "get_input", "reader_of", "same_place",
]  # fmt: skip
