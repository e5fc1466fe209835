"""Input laws: random ones, and files of real queries, keys and values."""

from pathlib import Path

from favorbench.errors import ScenarioError
from favorbench.inputs.base import Head, InputLaw, Inputs
from favorbench.inputs.file import File
from favorbench.inputs.synthetic import Gaussian, Sphere
from favorbench.registry import build, nearest

#: The real heads that ship with favorbench: scenarios/data/README.md has source, licence and hash.
SHIPPED = {"minilm": "minilm-cc0.npz"}

INPUTS: tuple[type[InputLaw], ...] = (Gaussian, Sphere, File)


def data_directory() -> Path:
    """scenarios/: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "scenarios"
    return inside if inside.is_dir() else package.parent / "scenarios"


def get_input(spec: str) -> InputLaw:
    """The input law that ``spec`` names: gaussian, gaussian(std=0.5), sphere, minilm, a path to .npz or .safetensors.

    Raises ScenarioError for a name that is none of these.
    """
    if spec in SHIPPED:
        return File(str(data_directory() / "data" / SHIPPED[spec]), label=spec)
    if spec.partition("(")[0].strip() in (Gaussian.name, Sphere.name):
        return build("input", spec, (Gaussian, Sphere), InputLaw)
    if Path(spec).suffix.lower() in (".npz", ".safetensors"):
        return File(spec, label=spec)
    names = [Gaussian.name, Sphere.name, *SHIPPED]
    raise ScenarioError(
        f"unknown inputs {spec!r}{nearest(spec, names)}; allowed: {', '.join(names)}, "
        "or a path ending in .npz or .safetensors"
    )


__all__ = ["INPUTS", "SHIPPED", "File", "Head", "InputLaw", "Inputs", "data_directory", "get_input"]
