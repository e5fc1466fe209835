"""What was captured of a model, for a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from favorbench.console.tables import show_records
from favorbench.console.terminal import print_line
from favorbench.formats import format_bytes

if TYPE_CHECKING:
    from favorbench.models.recorder import Captured, CapturedLayer

CHECK = (
    "check: the model's own output minus softmax(q k^T / sqrt(d)) v of the captured rows in float64, as a share of a "
    "head's largest entry, and what rounding can explain; of the head that comes closest to it."
)


def show_capture(console: Console, captured: "Captured", path: Path, command: str) -> None:
    """A row for each layer, what was refused and why, what is in the file, and the command that reads it."""
    records = [
        {
            "layer": layer.layer, "name": layer.name, "heads": layer.heads or "-", "mask": layer.mask,
            "scaling": f"{layer.scaling:.4g}", "check": _check(layer),
        }
        for layer in captured.layers
    ]  # fmt: skip
    meta = captured.meta
    texts = ", ".join(text["name"] for text in meta["texts"])
    show_records(console, records, f"{meta['model']} on {texts}")
    console.print()
    print_line(console, CHECK, "dim")
    for layer in captured.layers:
        if layer.reason:
            how_much = "in part" if layer.heads else "not"
            print_line(console, f"layer {layer.layer} ({layer.name}) is {how_much} captured: {layer.reason}", "red")
    if meta["dtype"] != "float32":
        print_line(console, f"{meta['dtype']} changes what a head gives by up to {meta['rounding']:.1e} of its norm.")
    q, k, v = captured.query.shape, captured.key.shape, captured.value.shape
    mask = "causal" if captured.causal else "full"
    size = format_bytes(captured.query.nbytes + captured.key.nbytes + captured.value.nbytes)
    print_line(console, f"{path}: {q[0]} heads, {mask}, q {q[1:]}, k {k[1:]}, v {v[1:]}, {meta['dtype']}, {size}")
    print_line(console, f"next: {command}", "bold")


def _check(layer: "CapturedLayer") -> str:
    """The difference and its limit; nothing where the mask alone decided."""
    return "-" if layer.difference != layer.difference else f"{layer.difference:.1e} (< {layer.limit:.0e})"
