"""Maps that are fitted to one text and measured on another."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from favorbench.errors import ScenarioError
from favorbench.inputs import Head, Inputs, same_place
from favorbench.maps.transforms import calibrations, scaled, with_arrays, with_calibrated
from favorbench.numerics.arrays import Array
from favorbench.numerics.streams import stream
from favorbench.registry import label

if TYPE_CHECKING:
    from favorbench.engine.plan import Draw, DrawShape
    from favorbench.engine.study import Study

Member = TypeVar("Member")

#: Relative distance below which two captures are the same text: the rounding of bfloat16.
SAME = 2.0**-7


def calibrated(
    study: "Study", member: Member, draws: "Sequence[Draw]", array: Callable[[Sequence[np.ndarray]], Array]
) -> Member:
    """Fit the calibrated map of a member, if it has one, to the calibration of each draw.

    array: joins the parameters of all draws.
    """
    if not calibrations(member):
        return member
    pairs = [scaled(*_tokens(study, draw)) for draw in draws]

    return with_calibrated(member, lambda fitted: with_arrays([fitted.calibrate(*pair) for pair in pairs], array))


def _tokens(study: "Study", draw: "Draw") -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of all texts of the calibration of a draw, at the scale of the draw."""
    source = study.calibration
    assert source is not None  # check_calibration has passed
    rng = stream(study.scenario.seed, "calibration", *draw.stream_names)
    texts = [source.law.draw(rng, head) for head in calibration_heads(study, draw.head)]
    query, key = (np.concatenate(parts) for parts in list(zip(*texts, strict=True))[:2])
    return draw.scale * query, draw.scale * key


def calibration_heads(study: "Study", head: Head) -> list[Head]:
    """The heads of the calibration in the layer and place of this one, one for each text. Raises ScenarioError."""
    source, scenario = study.calibration, study.scenario
    assert source is not None
    lengths, dims = (None, None) if source.law.fixed else ((head.seq_len,), (head.head_dim,))
    offered = source.law.heads(lengths, dims)
    matching = [other for other in offered if same_place(other.label, head.label)]
    where = f"`calibrate` {scenario.calibrate}"
    if not matching:
        labels = ", ".join(dict.fromkeys(other.label for other in offered[:12])) + ("..." if len(offered) > 12 else "")
        raise ScenarioError(f"{where}: it has no head {head.label!r}, which is to be measured; it has {labels}")
    if matching[0].head_dim != head.head_dim:
        raise ScenarioError(
            f"{where}: its head {matching[0].label} has head_dim {matching[0].head_dim}, not {head.head_dim}"
        )
    return matching


def check_calibration(study: "Study", shapes: "Iterable[DrawShape]") -> None:
    """Raise ScenarioError if a calibrated map has no text to be fitted to, or only the text it is measured on."""
    waiting = [label(member) for member in (*study.maps, *study.methods) if calibrations(member)]
    source = study.calibration
    if source is None:
        if waiting:
            raise ScenarioError(
                f"{waiting[0]}: its parameters are those of another text: give `calibrate` FILE to favorbench sweep, "
                "or calibrate=FILE to fb.sweep or fb.recommend"
            )
        return
    if not waiting:
        raise ScenarioError(
            f"`calibrate` {study.scenario.calibrate}: nothing asked for has parameters to fit; write calibrated:MAP "
            "for a map that has, e.g. `maps` calibrated:centre:aderf-sderf"
        )
    seen = set()
    for name, head in {(shape.input, shape.head): None for shape in shapes}:
        texts, law = calibration_heads(study, head), study.inputs[name].law
        if law.fixed and source.law.fixed and (name, head.label) not in seen:
            seen.add((name, head.label))
            measured = law.draw(np.random.default_rng(0), head)  # a file ignores the rng
            for text in texts:
                if _same_text(measured, source.law.draw(np.random.default_rng(0), text)):
                    raise ScenarioError(
                        f"`calibrate` {study.scenario.calibrate}: head {text.label} of it is the text that is "
                        f"measured, {name}: a map that has seen the test scores better than it will in use; give "
                        "another text, or write the maps without calibrated:"
                    )


def _same_text(first: Inputs, second: Inputs) -> bool:
    """Whether queries and keys are equal over the shorter length, up to the rounding of a file."""
    pairs = [(a[: len(b)], b[: len(a)]) for a, b in zip(first[:2], second[:2], strict=True)]
    return all(np.linalg.norm(a - b) <= SAME * np.linalg.norm(a) for a, b in pairs)
