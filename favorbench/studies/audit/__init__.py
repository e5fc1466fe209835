"""Implementations of other projects, tested on the same claims: distance to exact and uniform output, eps, sampler."""

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from favorbench.attention.exact import exact_attention
from favorbench.attention.linear import linear_attention
from favorbench.engine.plan import plan
from favorbench.engine.study import Study
from favorbench.inputs import Head, Inputs, get_input
from favorbench.numerics.machine import one_core
from favorbench.numerics.streams import stream
from favorbench.progress import Progress
from favorbench.results.summary import ROUNDING
from favorbench.samplers import Sampler, get_sampler
from favorbench.statistics import median_interval
from favorbench.studies.audit.implementations import Subject, study_of, subject_of
from favorbench.studies.verify import laws
from favorbench.studies.verify.checks import HOLDS, REFUTED, judged

__all__ = ["METHOD_SIZE", "NUM_PROJECTIONS", "Finding", "audit", "study_of"]

NUM_PROJECTIONS = 256
METHOD_SIZE = 64  # of methods, on 256 and 512 keys
#: Below this share of exact attention's own distance from uniform attention, an output is called uniform.
UNIFORM_SHARE = 0.2


class Finding(NamedTuple):
    """One measure of one implementation on one input: the median over runs, its 95 % interval, a remark if needed.

    fault: the remark says that the implementation is wrong.
    """

    subject: str
    input: str
    measure: str
    median: float
    low: float = math.nan
    high: float = math.nan
    remark: str = ""
    fault: bool = False


def audit(
    names: Sequence[str],
    runs: int = 20,
    seed: int = 0,
    progress: Progress | None = None,
    study: Study | None = None,
    size: int | None = None,
) -> list[Finding]:
    """Measure each implementation: "performer-pytorch", module:function of (q, k, v) or (q, k, v, omega), or a method.

    A method, or a function of (query, key, value, size, rng), is measured at ``size``, by default METHOD_SIZE.
    q, k, v are float64 arrays (L, d) as attention takes them, omega (``size`` or 256, d). study: use its inputs instead
    of the usual four. Raises ScenarioError for an unknown name, EstimatorError if the implementation fails. progress is
    called before each input of each of them.
    """
    findings: list[Finding] = []
    with one_core(), warnings.catch_warnings():  # threads would only wait for each other
        warnings.simplefilter("ignore")  # warnings of other projects do not concern the measurement
        subjects = [subject_of(name, size or METHOD_SIZE) for name in names]
        inputs = dict(_inputs(seed) if study is None else _inputs_of(study, seed))
        total = len(subjects) * len(inputs)
        for done, (subject, name) in enumerate(itertools.product(subjects, inputs)):
            if progress:
                progress(done, total, subject.name)
            findings += _measured(subject, name, inputs[name], runs, seed, size or NUM_PROJECTIONS)
            if (done + 1) % len(inputs) == 0 and subject.sampler is not None:
                findings += _sampler(subject.name, subject.sampler, seed)
    return findings


def _inputs(seed: int) -> Iterator[tuple[str, Inputs]]:
    """Textbook inputs at two scales, and two real heads."""
    law, head = get_input("gaussian"), Head("-", 256, 256, 64)
    for scale in (0.5, 1.0):
        query, key, value = law.draw(stream(seed, "audit", "inputs"), head)
        yield f"gaussian, scale {scale:g}, L = 256, d = 64", Inputs(scale * query, scale * key, value)
    minilm = get_input("minilm")
    for head in minilm.heads(None, None):
        if head.label in ("L0H1", "L5H0"):
            yield f"minilm {head.label}, L = 512, d = 32", minilm.draw(stream(seed), head)


def _inputs_of(study: Study, seed: int) -> Iterator[tuple[str, Inputs]]:
    for shape in plan(study).shapes:
        head = shape.head
        drawn = study.inputs[shape.input].law.draw(stream(seed, "audit", "inputs"), head)
        label = shape.input if head.label == "-" else f"{shape.input} {head.label}"
        yield f"{label}, L = {head.seq_len}, d = {head.head_dim}", drawn


def _measured(subject: Subject, name: str, arrays: Inputs, runs: int, seed: int, size: int) -> Iterator[Finding]:
    query, key, value = arrays
    exact, uniform = exact_attention(query, key, value), np.mean(value, axis=0)
    differ = not np.allclose(exact, uniform, rtol=0.0, atol=ROUNDING * float(np.max(np.abs(value))))
    measured: dict[str, list[float]] = {"error against exact": []} | ({"distance to uniform": []} if differ else {})
    finite = True
    for run in range(runs):
        omega = get_sampler("orthogonal").sample(stream(seed, "audit", "omega", name, run), size, query.shape[-1])
        output = subject.output(query, key, value, omega)
        measured["error against exact"].append(_distance(output, exact, exact))
        finite = finite and bool(np.isfinite(output).all())
        if differ:
            measured["distance to uniform"].append(_distance(output, uniform, exact - uniform))
        if subject.takes_omega:
            plain = linear_attention(query, key, value, omega, "positive")
            measured.setdefault("distance to FAVOR+ on the same omega", []).append(_distance(output, plain, plain))
        if subject.without_eps is not None:
            without = np.asarray(subject.without_eps(query, key, value, omega), dtype=np.float64)
            measured.setdefault("effect of eps", []).append(_distance(output, without, without))
    for measure, values in measured.items():
        low, high, _ = median_interval(np.array(values))
        median, remark = float(np.median(values)), ""
        if measure == "distance to uniform" and median < UNIFORM_SHARE:
            remark = f"its output is within {median:.1%} of the mean of V"
        if measure == "error against exact" and not math.isfinite(median):
            remark = f"it fails here: {'its error' if finite else 'the output'} is not finite"
        yield Finding(subject.name, name, measure, median, low, high, remark, fault=bool(remark))


def _distance(a: np.ndarray, b: np.ndarray, unit: np.ndarray) -> float:
    """|a - b| / |unit|; 0 / 0 is 0, as where all values are 0."""
    distance = np.linalg.norm(a - b)
    return float(distance / np.linalg.norm(unit)) if distance else 0.0


def _sampler(name: str, sampler: Sampler, seed: int) -> Iterator[Finding]:
    """The claims of a sampler whose rows should be N(0, I)."""
    for check in judged(laws.measure(sampler, 4000, seed)):
        fault = check.verdict == REFUTED
        statistic = math.nan if check.statistic is None else check.statistic
        remark = f"{REFUTED if fault else HOLDS}: {check.detail}"
        yield Finding(name, "its sampler", check.claim, statistic, remark=remark, fault=fault)
