"""Maps that are fitted to one text and measured on others: what they are fitted to, and what that may be."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from favorbench.errors import ScenarioError
from favorbench.inputs import Head, Inputs, same_place
from favorbench.maps import Calibrated
from favorbench.maps.calibrated import calibrations, scaled, with_arrays, with_calibrated
from favorbench.numerics.arrays import Array
from favorbench.numerics.streams import stream
from favorbench.registry import label

if TYPE_CHECKING:
    from favorbench.engine.plan import Draw, DrawShape
    from favorbench.engine.study import Study

Member = TypeVar("Member")

#: Relative distance below which two captures are the same text: what bfloat16 makes of one.
SAME = 2.0**-7


def calibrated(
    study: "Study", member: Member, draws: "Sequence[Draw]", array: Callable[[Sequence[np.ndarray]], Array]
) -> Member:
    """A map or method whose calibrated map, if it has one, has the parameters of each draw's calibration.

    array: how the parameters of all draws become one array.
    """
    if not calibrations(member):
        return member
    pairs = [scaled(*_tokens(study, draw)) for draw in draws]

    def fitted(one: Calibrated) -> Calibrated:
        return with_arrays([one.calibrate(*pair) for pair in pairs], array)

    return with_calibrated(member, fitted)


def _tokens(study: "Study", draw: "Draw") -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of the calibration of a draw, of all its texts, at the draw's scale."""
    source = study.calibration
    assert source is not None  # the plan has seen to it
    rng = stream(study.scenario.seed, "calibration", *draw.stream_names)
    texts = [source.law.draw(rng, head) for head in calibration_heads(study, draw.head)]
    query, key = (np.concatenate(parts) for parts in list(zip(*texts, strict=True))[:2])
    return draw.scale * query, draw.scale * key


def calibration_heads(study: "Study", head: Head) -> list[Head]:
    """The heads of the calibration at the place of this one, one for each text. Raises ScenarioError."""
    source, scenario = study.calibration, study.scenario
    assert source is not None
    lengths, dims = (None, None) if source.law.fixed else ((head.seq_len,), (head.head_dim,))
    offered = source.law.heads(lengths, dims)
    found = [one for one in offered if same_place(one.label, head.label)]
    where = f"`calibrate` {scenario.calibrate}"
    if not found:
        labels = ", ".join(dict.fromkeys(one.label for one in offered[:12])) + ("..." if len(offered) > 12 else "")
        raise ScenarioError(f"{where}: it has no head {head.label!r}, which is to be measured; it has {labels}")
    if found[0].head_dim != head.head_dim:
        raise ScenarioError(
            f"{where}: its head {found[0].label} has head_dim {found[0].head_dim}, the one measured {head.head_dim}"
        )
    return found


def check_calibration(study: "Study", shapes: "Iterable[DrawShape]") -> None:
    """Raise ScenarioError where a calibrated map has nothing to be fitted to, or the text that it is measured on."""
    waiting = [label(member) for member in (*study.maps, *study.methods) if calibrations(member)]
    source = study.calibration
    if source is None and waiting:
        raise ScenarioError(f"{waiting[0]}: its parameters are those of another text: give `calibrate` FILE")
    if source is None:
        return
    if not waiting:
        raise ScenarioError(
            f"`calibrate` {study.scenario.calibrate}: nothing asked for is calibrated; write calibrated:MAP, e.g. "
            "`maps` calibrated:centre:aderf-sderf"
        )
    rng, seen = np.random.default_rng(0), set()  # of laws that read data, which ignore it
    for name, head in {(shape.input, shape.head): None for shape in shapes}:
        found, law = calibration_heads(study, head), study.inputs[name].law
        if not (law.fixed and source.law.fixed) or (name, head.label) in seen:
            continue
        seen.add((name, head.label))
        measured = law.draw(rng, head)
        if any(_same_text(measured, source.law.draw(rng, one)) for one in found):
            raise ScenarioError(
                f"`calibrate` {study.scenario.calibrate}: head {head.label} of it is the text that is measured, "
                f"{name}: a map that has seen the test scores better than it will in use; give another text, or write "
                "the maps without calibrated:"
            )


def _same_text(one: Inputs, other: Inputs) -> bool:
    """Whether queries and keys are the same as far as both go, to the rounding of the precisions of a file."""
    pairs = [(a[: len(b)], b[: len(a)]) for a, b in zip(one[:2], other[:2], strict=True)]
    return all(np.linalg.norm(a - b) <= SAME * np.linalg.norm(a) for a, b in pairs)
