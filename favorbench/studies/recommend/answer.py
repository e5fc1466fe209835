"""What is recommended: for each head a setting, its error and cost, or that nothing will do; in words and in code."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from favorbench.formats import format_value, plain
from favorbench.maps import FeatureMap
from favorbench.metrics import METRICS
from favorbench.studies.recommend.candidates import Family
from favorbench.studies.recommend.search import Setting

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

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: what is recommended for each head, and in which words it is certified."""
        found = self._asdict() | {"sentence": sentence(self), "certified": certified_in_words(self)}
        found["heads"] = [_of_head(decision) for decision in self.decisions]
        del found["decisions"]
        return plain(found)


def _of_head(decision: Decision) -> dict[str, Any]:
    setting = decision.setting
    found = decision._asdict() | {"certified": decision.outcome == "certified"}
    found["estimator"] = setting and {name: getattr(setting, name) for name in ("kind", "name", "sampler", "size")}
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
        said = f"none of {of} {heads} {aim}" if of > 1 else f"not {aim}"
    else:
        shares = [d.share for d in certified]
        total = sum(d.multiplications for d in certified) / (found.exact * count)
        range_ = f" ({percent(min(shares))} to {percent(max(shares))})" if count > 1 else ""
        said = f"{count} of {of} {heads} {aim}, at {percent(total)} of the cost of exact attention{range_}"
    nothing, open_ = ([d for d in found.decisions if d.outcome == kind] for kind in ("nothing", "not finished"))
    if nothing:
        bounds = [d.bound for d in nothing]
        best = " to ".join(dict.fromkeys(number(b) for b in (min(bounds), max(bounds))))
        said += (
            f"; on {len(nothing)} nothing up to size {found.max_size} does: the best that is certified there is {best}"
        )
    if open_:
        said += f"; {len(open_)} not finished"
    return said[0].upper() + said[1:] + "."


def certified_in_words(found: Recommendation) -> str:
    """What the certificate is about, and how sure it is."""
    what = {
        "projections": "for these q, k and v, over the random draws of the estimator (new projections each time)",
        "inputs": "over q, k and v drawn anew from this law, together with the random draws of the estimator",
        "rows": "for these q, k and v, over the random draws of the estimator and of the query rows that are measured",
        "texts": "for a further text of the same kind, over texts and the random draws of the estimator: the texts "
        "of the file must be exchangeable with it, such as a random sample from one source",
    }[found.over]
    sign = "<=" if _lower(found) else ">="
    return (
        f"Certified: {found.metric} {sign} {found.target:g} with probability >= {found.probability:g}, {what}. "
        f"With {percent(found.confidence)} confidence every verdict on every head is right: the rest is shared equally "
        "among heads, and on each among its random candidates. Deterministic ones are computed, not tested."
    )


def worded(found: Recommendation, decision: Decision) -> str:
    """Why, of one head, in a sentence."""
    if decision.setting is None:
        return "not begun"
    if decision.outcome == "certified":
        text = f"certified {_sign(found)} {number(decision.bound)}" if decision.draws > 1 else "computed"
        return text + (f"; {len(decision.undecided)} cheaper undecided" if decision.undecided else "")
    if decision.outcome == "not finished":
        return "not certified"
    bound = f"{number(decision.bound)} (certified)" if math.isfinite(decision.bound) else "no bound"
    return f"nothing reaches it up to size {found.max_size}: the best has {bound}; uniform {number(decision.uniform)}"


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


def attention(query, key, value, rng):  # one head: (n, d), (l, d), (l, d_v) as attention takes them; a NumPy generator
"""


def python_lines(family: Family, size: int | None, scale: float) -> str:
    """A function that is the estimator, at this size, on the inputs that were measured times their scale."""
    causal, lines = family.study.scenario.causal, []
    if scale != 1:
        lines.append(f"query, key = {scale!r} * query, {scale!r} * key  # the scale that was measured")
    also = ", causal=True" if causal else ""
    if isinstance(family.member, FeatureMap):
        law = family.sampler or "iid"
        lines.append(f"omega = fb.sample_omega({law!r}, {size or 1}, query.shape[-1], rng, map={family.spec!r})")
        lines.append(f"return fb.linear_attention(query, key, value, omega, map={family.spec!r}{also})")
    else:
        name = f"fb.get_baseline({family.spec!r})" if family.kind == "baseline" else repr(family.spec)
        lines.append(f"return fb.method_attention(query, key, value, {name}, size={size or 1}, rng=rng{also})")
    return _HEAD + "".join(f"    {line}\n" for line in lines)


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
        f"Each line: the cheapest of the candidates that reaches the target, or the best where none does. certified: "
        f"the bound that {percent(found.probability)} of all draws keep, at {percent(found.confidence)} confidence for "
        f"all heads together; median and {percent(found.probability)}: of the draws that were made. cost: "
        "multiplications, as a share of exact attention's at this length; cheaper from L: the length from which on "
        "they are fewer. What is certified holds at this length only. uniform: the error of uniform attention."
    ]
    if some:
        dearer, rank = max(d.dearer for d in found.decisions), max(d.rank for d in found.decisions)
        measured, full = spent(found.decisions)
        said.append(
            f"{some.candidates} candidates on {some.head}; not tried on a head: up to {dearer} settings that cost more "
            f"than allowed, and {rank} whose rank is too low for the target. {measured} measurements, "
            f"{percent(measured / full)} of the {full} of a sweep with as many draws of each as a certificate takes."
        )
    if undecided := [d for d in found.decisions if d.undecided]:
        names = "; ".join(f"{d.head}: {', '.join(d.undecided)}" for d in undecided[:3])
        more = f"; and on {len(undecided) - 3} more heads" if len(undecided) > 3 else ""
        said.append(f"Cheaper, but too near to the target to decide ({names}{more}).")
    return said


def spent(decisions: Sequence[Decision]) -> tuple[int, int]:
    """Measurements made, and those of a sweep with as many draws of every setting as a certificate takes."""
    return int(np.sum([d.spent for d in decisions])), int(np.sum([d.full for d in decisions]))
