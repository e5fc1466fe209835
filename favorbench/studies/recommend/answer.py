"""What is recommended: for each head a setting, its error and cost, or that nothing will do; in words and in code."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from favorbench.formats import format_value, plain
from favorbench.methods.features import LinearAttention
from favorbench.metrics import METRICS
from favorbench.sections import Section, Sections, to_html
from favorbench.studies.recommend.candidates import Family
from favorbench.studies.recommend.search import Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: certified: the cheapest candidate that is. nothing: all were dropped, or left undecided. not finished: interrupted.
Outcome = Literal["certified", "nothing", "not finished"]


class Point(NamedTuple):
    """A candidate that was measured: its cost, and median and quantile of its error."""

    setting: Setting
    multiplications: float
    draws: int
    median: float
    quantile: float
    verdict: str


class Decision(NamedTuple):
    """Of one head. setting: the recommended one, or the best where nothing is certified; None before the first draw.

    hits: draws within the target. median, quantile: of its error over the draws, at the probability asked for. bound:
    certified not to be exceeded with that probability; inf where nothing is. share: of the multiplications of exact
    attention. cheaper_from: the length from which on it multiplies less than that, None where it never does. uniform:
    the error of uniform attention at the same probability. undecided: cheaper settings without a verdict. dearer, rank:
    how many settings were left out as they cost too much, and by the rank of their output. spent: measurements made;
    full: those of as many draws of every setting as a certificate takes.
    """

    head: str
    outcome: Outcome
    setting: Setting | None
    draws: int
    hits: int
    median: float
    quantile: float
    bound: float
    multiplications: float
    share: float
    cheaper_from: int | None
    uniform: float
    undecided: tuple[str, ...]
    candidates: int
    dearer: int
    rank: int
    spent: int
    full: int
    python: str
    points: tuple[Point, ...]


class Recommendation(NamedTuple):
    """What ``recommend`` found. path: the run directory. title: the inputs. exact: multiplications of exact attention.

    over: what a draw is: the projections of a head, its inputs too, or a text.
    """

    path: Path | None
    title: str
    metric: str
    target: float
    probability: float
    confidence: float
    over: str
    max_size: int
    exact: float
    decisions: tuple[Decision, ...]
    complete: bool

    def plot(self, ax: "Axes | Sequence[Axes] | None" = None) -> "Axes | list[Axes]":
        """Error against cost, with the target and the choice; returns Axes, a list where there are several panels.

        ax: where to draw, as many Axes as there are panels (one for each of up to six heads, else one for all);
        without, a figure of pyplot's. Raises ScenarioError for another number of Axes.
        """
        from favorbench import style
        from favorbench.studies.recommend.figure import charts

        axes = style.plot("recommend", charts(self), ax)
        return axes[0] if len(axes) == 1 else axes

    def _repr_html_(self) -> str:
        return to_html(sections(self))

    def __repr__(self) -> str:
        return f"<Recommendation for {self.title}: {sentence(self)}>"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: what is recommended for each head, and in which words it is certified."""
        found = self._asdict() | {"sentence": sentence(self), "certified": certified_in_words(self)}
        found["heads"] = [_of_head(decision) for decision in self.decisions]
        del found["decisions"]
        return plain(found)


def _of_head(decision: Decision) -> dict[str, Any]:
    setting = decision.setting
    found = decision._asdict() | {"certified": decision.outcome == "certified"}
    found["estimator"] = setting and setting._asdict()
    found["points"] = [point._replace(setting=point.setting.text)._asdict() for point in decision.points]  # pyright: ignore
    del found["setting"]
    return found


def sentence(found: Recommendation) -> str:
    """ "12 of 72 heads below 10 %, at 31 % of the cost of exact attention; ..." """
    certified = [d for d in found.decisions if d.outcome == "certified"]
    count, of = len(certified), len(found.decisions)
    heads = "head" if of == 1 else "heads"
    aim = f"{'below' if _lower(found) else 'above'} {_aim(found)}"
    if not count:
        said = f"none of {of} {heads} {aim}" if of > 1 else f"the head is not {aim}"
    else:
        shares = [d.share for d in certified]
        total = sum(d.multiplications for d in certified) / (found.exact * count)
        range_ = f" ({percent(min(shares))} to {percent(max(shares))})" if count > 1 else ""
        said = f"{count} of {of} {heads} {aim}, at {percent(total)} of the cost of exact attention{range_}"
    parts = [said, _nothing(found, [d for d in found.decisions if d.outcome == "nothing"])]
    if open_ := sum(d.outcome == "not finished" for d in found.decisions):
        parts.append(f"{open_} not finished, and not certified")
    said = "; ".join(filter(None, parts))
    return said[0].upper() + said[1:] + "."


def _nothing(found: Recommendation, decisions: Sequence[Decision]) -> str:
    """Of the heads on which nothing is certified: what comes nearest, beside uniform attention."""
    if not decisions:
        return ""
    reaches = "nothing is certified" if any(d.undecided for d in decisions) else "nothing reaches it"
    bounds, uniform = (_range([getattr(d, name) for d in decisions]) for name in ("bound", "uniform"))
    sure = "(certified)" if all(math.isfinite(d.bound) for d in decisions) else "(not all certified)"
    where = f"{len(decisions)} heads" if len(decisions) > 1 else decisions[0].head
    names = {d.setting.text for d in decisions if d.setting}
    best = f"is {names.pop()} with" if len(names) == 1 else "there have"
    return (
        f"{'here' if where == '-' else f'on {where}'} {reaches} up to size {found.max_size}: the best {best} {bounds} "
        f"{sure}; uniform attention has {uniform}"
    )


def _range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(number(value) for value in (min(values), max(values))))


def certified_in_words(found: Recommendation) -> str:
    """What the certificate is about, and how sure it is."""
    what = {
        "projections": "for these q, k and v, over the random draws of the estimator (new projections each time)",
        "inputs": "over q, k and v drawn anew from this law, together with the random draws of the estimator",
        "rows": "for these q, k and v, over the random draws of the estimator and of the query rows that are measured",
        "texts": "for a further text of the same kind, over texts and the random draws of the estimator: the texts "
        "of the file must be exchangeable with it, such as a random sample from one source",
    }[found.over]
    return (
        f"A certified bound holds with probability >= {found.probability:g}, {what}. With {percent(found.confidence)} "
        "confidence every verdict (reaches the target or not) is right on all heads, and with as much every bound: the "
        f"{percent(1 - found.confidence)} are shared equally among heads, and on each among its random candidates; "
        "deterministic ones are computed, not tested."
    )


def number(value: float) -> str:
    """An error: two or three digits."""
    return format_value(value, "relative_error")


def percent(share: float) -> str:
    """ "31 %", and digits where it is small or near 1."""
    if not math.isfinite(share):
        return "-"
    digits = next((d for d in range(6) if round(100 * share, d) not in (0.0, 100.0)), 0)
    return f"{100 * share:.{digits}f} %"


def _lower(found: Recommendation) -> bool:
    return METRICS[found.metric].better == "lower"


def _sign(found: Recommendation) -> str:
    return "<=" if _lower(found) else ">="


def _aim(found: Recommendation) -> str:
    return percent(found.target) if found.metric.startswith("relative") else f"{found.metric} {found.target:g}"


_HEAD = """\
import favorbench as fb


# Of one head: query (n, d), key (l, d), value (l, d_v), as attention takes
# them; rng: a NumPy generator, such as np.random.default_rng().
def attention(query, key, value, rng):
"""


def python_lines(family: Family, size: int | None, scale: float) -> str:
    """A function that is the estimator, at this size, on the inputs that were measured times their scale."""
    (kind, method), lines = family.estimator, []
    if scale != 1:
        lines.append(f"query, key = {scale!r} * query, {scale!r} * key  # as measured")
    also = ", causal=True" if family.study.scenario.causal else ""
    if isinstance(method, LinearAttention):
        law = family.estimator.sampler or "iid"
        lines.append(f"omega = fb.sample_omega({law!r}, {size or 1}, query.shape[-1], rng, map={family.spec!r})")
        lines.append(f"return fb.linear_attention(query, key, value, omega, map={family.spec!r}{also})")
    else:
        name = f"fb.get_baseline({family.spec!r})" if kind == "baseline" else repr(family.spec)
        lines.append(f"return fb.method_attention(query, key, value, {name}, size={size or 1}, rng=rng{also})")
    return _HEAD + "".join(f"    {line}\n" for line in lines)


def sections(found: Recommendation) -> Sections:
    """A row for each head with what the columns are, the sentences, and code for the first certified head."""
    title = f"{found.title}: {found.metric} target {found.target:g}"
    words = [sentence(found), certified_in_words(found)]
    table = Section(title, records(found), " ".join(notes(found)), words)
    certified = [decision for decision in found.decisions if decision.outcome == "certified"]
    if not certified:
        return Sections([table])
    others = len({decision.python for decision in certified}) > 1
    more = " (of the others: --json, or recommendation.json)" if others else ""
    where = f", for {certified[0].head}{more}" if len(found.decisions) > 1 else ""
    return Sections([table, Section(f"In Python{where}:", code=certified[0].python)])


def records(found: Recommendation) -> list[dict[str, str]]:
    """One line of the table for each head."""
    return [_record(found, decision) for decision in found.decisions]


def _record(found: Recommendation, decision: Decision) -> dict[str, str]:
    setting, quantile = decision.setting, f"{percent(found.probability)} of draws"
    names = ("head", "estimator", "size", "certified", "cost", "cheaper from L", "median", quantile, "uniform", "draws")
    if setting is None:
        return dict.fromkeys(names, "-") | {"head": decision.head, "estimator": "not begun"}
    said = {"certified": "", "nothing": "none; best: ", "not finished": "so far: "}[decision.outcome]
    sure = f"{_sign(found)} {number(decision.bound)}" if math.isfinite(decision.bound) else "no"
    far = "never" if decision.cheaper_from is None else str(decision.cheaper_from)
    values = (
        decision.head, said + setting.estimator, "-" if setting.size is None else str(setting.size), sure,
        percent(decision.share), far, number(decision.median), f"{_sign(found)} {number(decision.quantile)}",
        number(decision.uniform), str(decision.draws),
    )  # fmt: skip
    return dict(zip(names, values, strict=True))


def notes(found: Recommendation) -> list[str]:
    """What the table means, and what was not tried."""
    some = next((d for d in found.decisions if d.candidates), None)
    said = [
        "Of each head the cheapest candidate that reaches the target, or the best where none does. certified: what "
        f"{percent(found.probability)} of all draws keep; median and {percent(found.probability)}: of those made. "
        "cost: multiplications, as a share of exact attention's at this length; cheaper from L: the length from which "
        "on they are fewer (the error is certified at this length only). uniform: the error of uniform attention."
    ]
    if some:
        measured, full = spent(found.decisions)
        on = "" if some.head == "-" else f" on {some.head}"
        said.append(
            f"{some.candidates} candidates{on}{_not_tried(found.decisions)}. {measured} measurements, "
            f"{percent(measured / full)} of the {full} of a sweep with as many draws of each as a certificate takes."
        )
    if undecided := [d for d in found.decisions if d.undecided]:
        names = "; ".join(f"{d.head}: {', '.join(d.undecided)}" for d in undecided[:3])
        more = f"; and some on {len(undecided) - 3} more heads" if len(undecided) > 3 else ""
        said.append(f"Too near to the target to decide: {names}{more}.")
    return said


def _not_tried(decisions: Sequence[Decision]) -> str:
    """How many settings were left out, and why; nothing where none was."""
    dearer, rank = max(d.dearer for d in decisions), max(d.rank for d in decisions)
    why = {"they cost more than allowed": dearer, "the rank of their output is too low": rank}
    parts = [f"{count} as {reason}" for reason, count in why.items() if count]
    return f"; not tried on a head: up to {', and '.join(parts)}" if parts else ""


def spent(decisions: Sequence[Decision]) -> tuple[int, int]:
    """Measurements made, and those of a sweep with as many draws of every setting as a certificate takes."""
    return int(np.sum([d.spent for d in decisions])), int(np.sum([d.full for d in decisions]))
