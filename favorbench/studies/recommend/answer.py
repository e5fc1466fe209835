"""A recommendation: for each head a setting with its error and cost, or none; as data, sentences, a table and code."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from favorbench.formats import counted, decimals, format_value, in_full, percent, plain
from favorbench.inputs.heads import head_and_text
from favorbench.methods.features import LinearAttention
from favorbench.results.heads import EACH_TEXT
from favorbench.sections import Section, Sections, to_html
from favorbench.studies.recommend.candidates import PER_HEAD, EstimatorSetting, Family
from favorbench.studies.recommend.decision import EFFECTS, Decision, WholeModel, better_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Recommendation(NamedTuple):
    """The result of ``recommend``. path: the run directory. title: the inputs. exact: cost of exact attention.

    over: the difference between draws: "projections", "inputs", "rows" or "texts". model: set if the single
    decision is about a whole model. notes: what was said of the inputs that may make them another problem.
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
    model: WholeModel | None = None
    notes: Sequence[str] = ()

    def plot(self, ax: "Axes | Sequence[Axes] | None" = None) -> "Axes | list[Axes]":
        """Draw error against cost, with the target and the choice.

        Parameters
        ----------
        ax
            One Axes for each panel; by default those of a new pyplot figure. Up to six heads have a panel each, more
            heads share one.

        Returns
        -------
        Axes or list of Axes
            A list if there are several panels.

        Raises
        ------
        ScenarioError
            The number of Axes is not that of the panels.
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
        """Plain data, for JSON, with the sentence and the meaning of the certificate."""
        record = self._asdict() | {"sentence": sentence(self), "certified": certified_in_words(self)}
        del record["decisions"]
        return plain(record | {"heads": [_plain_decision(decision) for decision in self.decisions]})


def _plain_decision(decision: Decision) -> dict[str, Any]:
    record: dict[str, Any] = decision._asdict() | {"certified": decision.outcome == "certified"}
    record["estimator"] = record.pop("setting")
    record["points"] = [
        point._asdict() | {"setting": point.setting.text, "estimator": point.setting} for point in decision.points
    ]
    return record


def sentence(result: Recommendation) -> str:
    """The answer in words, such as "12 of 72 heads below 10 %, at 31 % of the cost of exact attention; ..."."""
    if result.model is not None:
        return _model_sentence(result, result.model, result.decisions[0])
    certified, nothing, unfinished = (
        [d for d in result.decisions if d.outcome == outcome] for outcome in ("certified", "nothing", "not finished")
    )
    parts = [_certified(result, certified)]
    if nothing:
        parts.append(_nothing(result, nothing))
    if unfinished:
        parts.append(f"{len(unfinished)} not finished, and not certified")
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


def _certified(result: Recommendation, decisions: Sequence[Decision]) -> str:
    """State the number of heads with a certified setting, and its cost."""
    count, total = len(decisions), len(result.decisions)
    target = in_full(result.target) if result.metric.startswith("relative") else f"{result.metric} {result.target:g}"
    aim = f"{'below' if better_of(result.metric) == 'lower' else 'above'} {target}"
    if not decisions:
        return f"none of {total} heads {aim}" if total > 1 else f"the head is not {aim}"
    shares = [d.share for d in decisions]
    mean = sum(d.multiplications for d in decisions) / (result.exact * count)
    range_ = f" ({percent(min(shares))} to {percent(max(shares))})" if count > 1 else ""
    heads = "head" if total == 1 else "heads"
    trivial = sum(d.setting is not None and d.setting.name == "uniform" for d in decisions)
    if trivial:
        range_ += f"; uniform attention is enough on {trivial} of them"
    return f"{count} of {total} {heads} {aim}, at {percent(mean)} of the cost of exact attention{range_}"


def _nothing(result: Recommendation, decisions: Sequence[Decision]) -> str:
    """Describe the heads on which nothing is certified: the best setting, compared with uniform attention."""
    nothing = "nothing within the cost limit" if any(d.dearer for d in decisions) else "nothing"
    reaches = f"{nothing} {'is certified' if any(d.undecided for d in decisions) else 'reaches it'}"
    bounds, measured, uniform = ([getattr(d, name) for d in decisions] for name in ("bound", "quantile", "uniform"))
    bound, found = _range(bounds, _sign(result)), _range(measured)
    sure = f"certified{f': {bound}' * (bound != found)}" if all(map(math.isfinite, bounds)) else "not all certified"
    head = f"on {len(decisions)} heads" if len(decisions) > 1 else f"on {decisions[0].head}".replace("on -", "here")
    names = {d.setting.text for d in decisions if d.setting}
    best = f"is {names.pop()} with" if len(names) == 1 else "there have"
    return (
        f"{head} {reaches} up to size {result.max_size}: the best {best} {found} "
        f"({sure}); uniform attention has {_range(uniform)}"
    )


def _range(values: Sequence[float], sign: str = "") -> str:
    return " to ".join(dict.fromkeys(_bound(value, sign, number) for value in (min(values), max(values))))


def _bound(value: float, sign: str, text: Callable[[float], str]) -> str:
    """The text of a bound, rounded to the side on which it still holds."""
    way = {"<=": 1, ">=": -1}.get(sign, 0)
    steps = (value + way * step * abs(value) / 1000 for step in range(1000)) if math.isfinite(value) else ()
    return next((text(v) for v in steps if way * float(text(v)) >= way * value), text(value))


def _model_sentence(result: Recommendation, model: WholeModel, decision: Decision) -> str:
    """Say which setting to take, or that none is certified."""
    effect, setting = EFFECTS[result.metric], decision.setting
    if setting is None:
        return "Nothing is measured yet."
    keeps, share = "at most" if better_of(result.metric) == "lower" else "at least", in_full(result.probability)
    aim = f"{effect.name} {keeps} {result.target:g}{effect.unit} on {share} of further {model.draws}"
    point = next(point for point in decision.points if point.setting == setting)
    errors = f"median {_effect(decision.median)} and worst {_effect(point.worst)} of {decision.draws} {model.draws}"
    sure = f"certified at {in_full(result.confidence)}; {errors}"
    best = f"{in_words(setting)}{_model_cost(model, decision)}"
    others = [f"uniform attention has {_effect(decision.uniform)}"]
    others += [f"the model in bfloat16 {_effect(model.bfloat16[1])}"] if model.bfloat16_texts else []
    if decision.outcome == "not finished":
        return f"Not finished, and not certified: so far the best, {best}, on {decision.draws} {model.draws}."
    if decision.outcome == "certified" and setting.name == "uniform":
        exact = [(len(model.exact_heads), "exact head"), (len(model.left), "layer")]
        if beside := " and ".join(counted(*some) for some in exact if some[0]):
            left = " left unchanged" if model.left else ""
            return f"Uniform attention is enough beside {beside}{left}: {best}, keeps {aim} ({sure})."
        return f"Uniform attention is enough here: it keeps {aim} ({sure})."
    if decision.outcome == "certified":
        return (
            f"Take {best}: it keeps {aim} ({sure}), where {' and '.join(others)}.{_compared(result, model, decision)}"
        )
    held = f"certified: {keeps} {_bound(decision.bound, _sign(result), _effect)}"
    held = held if math.isfinite(decision.bound) else "not certified"
    bound = f"{_effect(decision.quantile)} (on {share} of {decision.draws} {model.draws}; {held})"
    also = ", settings per head included," if model.chosen_on else ""
    return (
        f"No candidate{also} is certified to keep {aim}: the best, {best}, has {bound}, where {' and '.join(others)}."
    )


def _compared(result: Recommendation, model: WholeModel, decision: Decision) -> str:
    """Compare settings per head with one setting for all heads, where both were candidates."""
    if not model.chosen_on:
        return ""
    if decision.per_head is None:
        tried = sum(point.setting.kind == PER_HEAD for point in decision.points)
        return f" No settings per head that cost less are certified ({tried} tried)."
    singles = [point for point in decision.points if point.setting.kind != PER_HEAD and point.share <= decision.share]
    nearest = max(singles, key=lambda point: point.share)
    return (
        f" One setting for all heads at no more cost is not certified: {in_words(nearest.setting)} has "
        f"{_effect(nearest.quantile)} (on {in_full(result.probability)} of {nearest.draws} {model.draws})."
    )


def _model_cost(model: WholeModel, decision: Decision) -> str:
    """Give the cost relative to exact attention, in the layers that are replaced."""
    layers, there = (f" in all layers but {len(model.left)}", " there") if model.left else ("", "")
    kept = f" with {counted(len(model.exact_heads), 'head')} exact" * bool(model.exact_heads)
    unit = "multiplications" if model.by == "multiplications" else "CPU seconds"
    timed = model.by == "multiplications" and math.isfinite(model.seconds)
    more = f" and {model.seconds:.2g} times its CPU seconds" if timed else ""
    return f"{kept}{layers}, at {percent(decision.share)} of the {unit} of exact attention{there}{more}"


def _effect(value: float) -> str:
    """An effect: three digits, more next to 1."""
    return "-" if math.isnan(value) else f"{value:.{decimals(value)}g}"


def in_words(setting: EstimatorSetting) -> str:
    """Name a setting, such as "sinks(4):multipole at m = 96"."""
    sampler = "" if setting.sampler in (None, "orthogonal") else f", {setting.sampler},"
    size = "" if setting.size is None else f" at {'R' if setting.kind == 'map' else 'm'} = {setting.size}"
    return f"{setting.name}{sampler}{size}"


def _model_certified(result: Recommendation, model: WholeModel) -> str:
    """State the population of a certificate for a model, and its confidence."""
    decision = result.decisions[0]
    fewest, more = model.of_each or (0, 0)
    each = " in equal parts" if more - fewest <= 1 else f"; the answer was tested on {fewest} to {more} of each"
    files = "one file" if model.files == 1 else f"{model.files} files{each}"
    most = model.of_one_file
    parts = f"; up to {most} texts of one file count as independent" if most > 1 and model.length else ""
    population = (
        f"{model.texts} texts of {model.length} tokens from {files}" if model.length else f"{model.texts} inputs"
    )
    unit = "a text" if model.length else "an input"
    parts += f"; settings per head were chosen on {model.chosen_on} of them, and tested on others" * bool(
        model.chosen_on
    )
    return (
        f"The claim is about further {model.draws} like these ({population}), "
        f"each with a new draw of the estimator: {unit} must be exchangeable with them{parts}. With "
        f"{in_full(result.confidence)} confidence every verdict is right, and with as much every bound: the "
        f"{in_full(1 - result.confidence)} are shared equally among the {counted(decision.candidates, 'candidate')}."
    )


def certified_in_words(result: Recommendation) -> str:
    """State the claim of the certificate, and its confidence."""
    if result.model is not None:
        return _model_certified(result, result.model)
    scope = {
        "projections": "for these q, k and v, over the random draws of the estimator (new projections each time)",
        "inputs": "over q, k and v drawn anew from this law, together with the random draws of the estimator",
        "rows": "for these q, k and v, over the random draws of the estimator and of the query rows that are measured",
        "texts": "for a further text of the same kind, over texts and the random draws of the estimator: the texts "
        "of the file must be exchangeable with it, such as a random sample from one source",
    }[result.over]
    tested = "candidates"  # with other inputs or rows in each draw, the error of every one is random
    if result.over == "projections":
        tested = "random candidates. Deterministic candidates are computed, not tested"
    rows = ""
    if result.metric == "max_abs_error" and "query rows measured" in result.title:
        rows = " The largest error is that of the query rows measured: over all rows it can be far larger."
    return (
        f"A certified bound holds with probability >= {result.probability:g}, {scope}. All verdicts on all heads "
        f"(reaches the target or not) are right with {in_full(result.confidence)} confidence, and so are all bounds. "
        f"The {in_full(1 - result.confidence)} are split equally among heads, and on each head among its {tested}."
    ) + rows


def number(value: float) -> str:
    """An error: two or three digits."""
    return format_value(value, "relative_error")


_HEAD = """\
import favorbench as fb


# For one head: query (n, d), key (l, d), value (l, d_v), as attention takes
# them; rng: a NumPy generator, such as np.random.default_rng().
def attention(query, key, value, rng):
"""


def python_lines(family: Family, size: int | None, scale: float) -> str:
    """Python code of a function that computes this estimator at this size. scale: of the measured inputs."""
    lines = []
    if scale != 1:
        lines.append(f"query, key = {scale!r} * query, {scale!r} * key  # as measured")
    causal = ", causal=True" if family.study.scenario.causal else ""
    if isinstance(family.estimator.method, LinearAttention):
        law = family.law or "iid"
        lines.append(f"omega = fb.sample_omega({law!r}, {size or 1}, query.shape[-1], rng, map={family.spec!r})")
        lines.append(f"return fb.linear_attention(query, key, value, omega, map={family.spec!r}{causal})")
    else:
        name = f"fb.get_baseline({family.spec!r})" if family.estimator.kind == "baseline" else repr(family.spec)
        lines.append(f"return fb.method_attention(query, key, value, {name}, size={size or 1}, rng=rng{causal})")
    return _HEAD + "".join(f"    {line}\n" for line in lines)


def sections(result: Recommendation) -> Sections:
    """A table with notes and sentences, and code for the first certified decision.

    It has a row for each head or, for a whole model, for each candidate that was measured.
    """
    title = f"{result.title}: {result.metric} target {result.target:g}"
    sentences = [sentence(result), certified_in_words(result)]
    table = Section(title, records(result), " ".join([*notes(result), *result.notes]), sentences)
    certified = [decision for decision in result.decisions if decision.outcome == "certified"]
    if not certified:
        return Sections([table])
    others = len({decision.python for decision in certified}) > 1
    more = " (for the others: --json, or recommendation.json)" if others else ""
    where = f", for {certified[0].head}{more}" if len(result.decisions) > 1 else ""
    return Sections([table, Section(f"In Python{where}:", code=certified[0].python)])


def records(result: Recommendation) -> list[dict[str, str]]:
    """One row of the table for each head, or each candidate for a model."""
    if result.model is not None:
        return _model_records(result, result.model)
    return [_record(result, decision) for decision in result.decisions]


def _record(result: Recommendation, decision: Decision) -> dict[str, str]:
    setting, sign = decision.setting, _sign(result)
    quantile = f"{in_full(result.probability)} of draws"
    names = ("head", "estimator", "size", "certified", "cost", "cheaper from L", "median", quantile, "uniform", "draws")
    if setting is None:
        return dict.fromkeys(names, "-") | {"head": decision.head, "estimator": "not begun"}
    state = {"certified": "", "nothing": "none; best: ", "not finished": "so far: "}[decision.outcome]
    values = (
        decision.head, state + setting.estimator, _size(setting),
        f"{sign} {_bound(decision.bound, sign, number)}" if math.isfinite(decision.bound) else "no",
        percent(decision.share), "never" if decision.cheaper_from is None else str(decision.cheaper_from),
        number(decision.median), f"{sign} {number(decision.quantile)}", number(decision.uniform), str(decision.draws),
    )  # fmt: skip
    return dict(zip(names, values, strict=True))


def _sign(result: Recommendation) -> str:
    return "<=" if better_of(result.metric) == "lower" else ">="


def _size(setting: EstimatorSetting) -> str:
    return "-" if setting.size is None else str(setting.size)


_VERDICTS = {"certified": "certified", "dropped": "rejected", "open": "undecided"}


def _model_records(result: Recommendation, model: WholeModel) -> list[dict[str, str]]:
    """The candidates that were measured, in order of cost, and the model in bfloat16."""
    decision, quantile = result.decisions[0], f"{in_full(result.probability)} of {model.draws}"
    sign = _sign(result)
    bound = f": {sign} {_bound(decision.bound, sign, _effect)}" * (decision.outcome == "certified")
    names = ("estimator", "size", "verdict", "cost", "median", quantile, "worst", model.draws)
    rows = [
        (point.setting.estimator, _size(point.setting),
         _VERDICTS[point.verdict] + bound * (point.setting == decision.setting), percent(point.share),
         *map(_effect, (point.median, point.quantile, point.worst)), str(point.draws))
        for point in sorted(decision.points, key=lambda point: point.share)
    ]  # fmt: skip
    if model.bfloat16_texts:
        effects = map(_effect, model.bfloat16)
        rows.append(("exact, model in bfloat16", "-", "-", "-", *effects, str(model.bfloat16_texts)))
    return [dict(zip(names, row, strict=True)) for row in rows]


def _model_notes(result: Recommendation, model: WholeModel) -> list[str]:
    """Explain the columns of the table of a model, and name the attention that cannot be replaced."""
    decision, effect = result.decisions[0], EFFECTS[result.metric]
    timed = "all layers" if model.exact_heads else "two of the layers, or all where shapes differ"
    timed += "; of settings per head all layers" * bool(model.chosen_on)
    unit = "multiplications" if model.by == "multiplications" else f"CPU seconds (one thread, {timed})"
    cheaper = f"; {decision.dearer} more cost more than allowed" if decision.dearer else ""
    share = in_full(result.probability)
    lines = [
        f"Candidates replace attention in all layers{f' but {len(model.left)}' if model.left else ''} and are tried in "
        f"order of cost: {unit} relative to those of exact attention{' in these' * bool(model.left)}. "
        f"median, {share} and worst: of "
        f"{effect.axis}, over the {model.draws} measured; certified: the bound for {share} of "
        f"further {model.draws}. {counted(decision.candidates, 'candidate')}{cheaper}; "
        f"{counted(decision.spent, 'measurement')}; as many {model.draws} of every candidate as a certificate takes "
        f"are {decision.full}."
    ]
    if model.chosen_on:
        lines.append(
            "Settings per head: in each head the setting, or exact attention, that makes the sum of the predicted "
            "effects of all heads least at this cost, which is stated as no less than that of the one setting they are "
            f"compared with; effects are means over {model.chosen_on} {model.draws}."
        )
    if model.timed:
        lines.append(f"CPU seconds of the answer relative to those of exact attention: {model.timed}.")
    if model.exact_heads:
        lines.append(f"Exact in every candidate: {', '.join(model.exact_heads)}.")
    lines += [f"{name} is left unchanged: {reason}." for name, reason in list(model.left.items())[:3]]
    if len(model.left) > 3:
        lines.append(f"So are {len(model.left) - 3} more.")
    stopped = {point.setting.text for point in decision.points if point.draws < model.texts - model.chosen_on}
    reasons = {
        f"with these {model.draws}, more may do": [name for name in decision.undecided if name not in stopped],
        f"with the most {model.draws} that a candidate is tested on": [n for n in decision.undecided if n in stopped],
    }
    lines += [f"Too near to the target to decide {why}: {', '.join(names)}." for why, names in reasons.items() if names]
    return lines


def notes(result: Recommendation) -> list[str]:
    """Explain the columns of the table, and list the settings that were not tried or not decided."""
    if result.model is not None:
        return _model_notes(result, result.model)
    p = in_full(result.probability)
    lines = [
        "For each head the cheapest candidate that reaches the target, or the best if none does. certified: the bound "
        f"that {p} of all draws keep; median and {p}: of the draws made. cost: multiplications, as a share of exact "
        "attention's at this length; cheaper from L: the length from which they are fewer (the error is certified at "
        f"this length only). uniform: the error of uniform attention, on {p} of its draws."
    ]
    if searched := next((d for d in result.decisions if d.candidates), None):
        measured, full = spent(result.decisions)
        head = "" if searched.head == "-" else f" on {searched.head}"
        lines.append(
            f"{counted(searched.candidates, 'candidate')}{head}{_not_tried(result.decisions)}. "
            f"{counted(measured, 'measurement')}, "
            f"{percent(measured / full)} of the {full} of a sweep with as many draws of each as a certificate takes."
        )
    if len({head_and_text(d.head)[1] for d in result.decisions}) > 1:
        lines.append(f"{EACH_TEXT}.")
    if undecided := [d for d in result.decisions if d.undecided]:
        names = "; ".join(f"{d.head}: {', '.join(d.undecided)}" for d in undecided[:3])
        more = f"; and some on {len(undecided) - 3} more heads" if len(undecided) > 3 else ""
        lines.append(f"Too near to the target to decide: {names}{more}.")
    return lines


def _not_tried(decisions: Sequence[Decision]) -> str:
    """State how many settings were excluded, and why; empty if none was."""
    reasons = {
        "they cost more than allowed": max(d.dearer for d in decisions),
        "the rank of their output is too low": max(d.rank for d in decisions),
    }
    parts = [f"{count} as {reason}" for reason, count in reasons.items() if count]
    return f"; not tried on a head: up to {', and '.join(parts)}" if parts else ""


def spent(decisions: Sequence[Decision]) -> tuple[int, int]:
    """The number of measurements, and the number that a sweep would take to certify every setting."""
    return sum(d.spent for d in decisions), sum(d.full for d in decisions)
