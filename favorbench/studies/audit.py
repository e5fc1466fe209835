"""Other people's implementations on the same claims: distance to exact and to uniform, effect of eps, sampler."""

import importlib
import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from favorbench.attention.exact import exact_attention
from favorbench.attention.linear import linear_attention
from favorbench.errors import EstimatorError, ScenarioError
from favorbench.inputs import Head, Inputs, get_input
from favorbench.methods import METHODS, PREFIXES, get_method
from favorbench.methods.attention import method_attention
from favorbench.numerics.backend import from_torch, to_torch
from favorbench.numerics.machine import one_core
from favorbench.numerics.streams import stream
from favorbench.progress import Progress
from favorbench.registry import import_object
from favorbench.samplers import Sampler, get_sampler
from favorbench.samplers.coupling import ORTHOGONAL, Coupling
from favorbench.statistics import median_interval
from favorbench.studies.verify import laws
from favorbench.studies.verify.checks import HOLDS, REFUTED, judged

NUM_PROJECTIONS = 256
METHOD_SIZE = 64  # of methods, on 256 and 512 keys
#: Below this share of exact attention's own distance from uniform attention, an output is called uniform.
UNIFORM_SHARE = 0.2

#: (q, k, v, omega) -> output
Implementation = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Any]


class Finding(NamedTuple):
    """One measure of one implementation on one input: median over runs, 95 % interval, a remark if need be.

    fault: the remark says that something is wrong with the implementation.
    """

    subject: str
    input: str
    measure: str
    median: float
    low: float
    high: float
    remark: str = ""
    fault: bool = False


class Subject(NamedTuple):
    """An implementation: how to call it, whether it uses the omega it is given, itself without eps, its sampler."""

    name: str
    attend: Implementation
    takes_omega: bool
    without_eps: Implementation | None = None
    sampler: Sampler | None = None


def audit(names: Sequence[str], runs: int = 20, seed: int = 0, progress: Progress | None = None) -> list[Finding]:
    """Measure each implementation: "performer-pytorch", module:function of (q, k, v) or (q, k, v, omega), or a method.

    A method, or a function of (query, key, value, size, rng), is asked at size METHOD_SIZE.

    q, k, v are float64 arrays (L, d) as attention takes them, omega (256, d). Raises ScenarioError for a name that
    cannot be had, EstimatorError if the implementation fails. progress is called after each input of each of them.
    """
    findings: list[Finding] = []
    report = progress or (lambda done, total, step: None)
    with one_core(), warnings.catch_warnings():  # threads would only wait for each other
        warnings.simplefilter("ignore")  # another's warnings are not about what is measured here
        subjects, inputs = [_subject(name) for name in names], list(_inputs(seed))
        for done, (subject, (name, arrays)) in enumerate(itertools.product(subjects, inputs)):
            report(done, len(subjects) * len(inputs), subject.name)
            findings += _measured(subject, name, arrays, runs, seed)
            if name == inputs[-1][0] and subject.sampler is not None:
                findings += _sampler(subject, seed)
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


def _measured(subject: Subject, name: str, arrays: Inputs, runs: int, seed: int) -> list[Finding]:
    query, key, value = arrays
    exact, uniform = exact_attention(query, key, value), np.mean(value, axis=0)
    found: dict[str, list[float]] = {"error against exact": [], "distance to uniform": []}
    for run in range(runs):
        rng = stream(seed, "audit", "omega", name, run)
        omega = get_sampler("orthogonal").sample(rng, NUM_PROJECTIONS, query.shape[-1])
        output = _called(subject, subject.attend, query, key, value, omega)
        found["error against exact"].append(_norm(output - exact) / _norm(exact))
        found["distance to uniform"].append(_norm(output - uniform) / _norm(exact - uniform))
        if subject.takes_omega:
            plain = linear_attention(query, key, value, omega, "positive")
            found.setdefault("distance to FAVOR+ on the same omega", []).append(_norm(output - plain) / _norm(plain))
        if subject.without_eps is not None:
            without = _called(subject, subject.without_eps, query, key, value, omega)
            found.setdefault("effect of eps", []).append(_norm(output - without) / _norm(without))
    return [_finding(subject.name, name, measure, np.array(values)) for measure, values in found.items()]


def _finding(subject: str, name: str, measure: str, values: np.ndarray) -> Finding:
    low, high, _ = median_interval(values)
    median, remark = float(np.median(values)), ""
    if measure == "distance to uniform" and median < UNIFORM_SHARE:
        remark = f"its output is within {median:.1%} of the mean of V"
    if measure == "error against exact" and not math.isfinite(median):
        remark = "it fails here: the output is not finite"
    return Finding(subject, name, measure, median, low, high, remark, fault=bool(remark))


def _sampler(subject: Subject, seed: int) -> Iterator[Finding]:
    """The claims of a sampler whose rows should be N(0, I), and the mean of its first entry as the bias."""
    assert subject.sampler is not None
    for check in judged(laws.measure(subject.sampler, 4000, seed)):
        fault = check.verdict == REFUTED
        remark = f"{REFUTED if fault else HOLDS}: {check.detail}"
        statistic = math.nan if check.statistic is None else check.statistic
        yield Finding(subject.name, "its sampler", check.claim, statistic, math.nan, math.nan, remark, fault)


def _called(subject: Subject, attend: Implementation, *arrays: np.ndarray) -> np.ndarray:
    """The output as float64, or one clear error."""
    query, _, value, _ = arrays
    try:
        output = np.asarray(attend(*arrays), dtype=np.float64)
    except Exception as error:  # another's code may fail in any way
        raise EstimatorError(f"audit: {subject.name} failed: {type(error).__name__}: {error}") from error
    expected = (query.shape[0], value.shape[1])
    if output.shape != expected:
        raise EstimatorError(f"audit: {subject.name} returned shape {output.shape}; (L, d_v) = {expected} was expected")
    return output


def _norm(a: np.ndarray) -> float:
    return float(np.linalg.norm(a))


def _subject(name: str) -> Subject:
    if name == "performer-pytorch":
        return _performer_pytorch()
    first = name.split(":")[0].partition("(")[0].strip()
    if first in {member.name for member in METHODS} | {prefix.prefix for prefix in PREFIXES}:
        return _of_method(name)
    if ":" not in name:
        raise ScenarioError(
            f"audit: unknown {name!r}; allowed: performer-pytorch, a method, or module:function of (q, k, v[, omega]) "
            "or (query, key, value, size, rng)"
        )
    function = import_object("implementation", name)
    if inspect.isfunction(function) and len(inspect.signature(function).parameters) == 5:
        return _of_method(name)
    if not callable(function):
        raise ScenarioError(f"audit: {name!r} is a {type(function).__name__}, not a function of (q, k, v[, omega])")
    positional = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    takes_omega = len(positional) > 3 and (
        positional[3].name == "omega" or positional[3].default is inspect.Parameter.empty
    )
    if takes_omega:
        return Subject(name, function, takes_omega=True)
    return Subject(name, lambda q, k, v, omega: function(q, k, v), takes_omega=False)


def _of_method(name: str) -> Subject:
    """A method at one size; its generator is seeded by the projections, which are drawn anew for each run."""
    method = get_method(name)

    def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, omega: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(np.frombuffer(omega[0].tobytes(), np.uint32))
        return method_attention(query, key, value, method, METHOD_SIZE, rng)

    return Subject(name, attend, takes_omega=False)


def _performer_pytorch() -> Subject:
    """performer-pytorch's FastAttention (projections of its own), its eps of 1e-4, and its orthogonal sampler."""
    try:
        performer = importlib.import_module("performer_pytorch.performer_pytorch")
    except ImportError:
        raise ScenarioError(
            "audit: performer-pytorch is not installed; install a torch build for your machine, "
            "then pip install 'favorbench[audit]'"
        ) from None

    def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, omega: np.ndarray) -> np.ndarray:
        fast = performer.FastAttention(dim_heads=query.shape[-1], nb_features=len(omega))
        fast.projection_matrix = to_torch(omega)  # so that runs are reproducible; its own sampler is judged apart
        return from_torch(fast(*(to_torch(a)[None, None] for a in (query, key, value))))[0, 0]

    def without_eps(query: np.ndarray, key: np.ndarray, value: np.ndarray, omega: np.ndarray) -> np.ndarray:
        projection = to_torch(omega)
        features = [
            performer.softmax_kernel(to_torch(a)[None, None], projection_matrix=projection, is_query=is_query, eps=0.0)
            for a, is_query in ((query, True), (key, False))
        ]
        return from_torch(performer.linear_attention(*features, to_torch(value)[None, None]))[0, 0]

    sampler = PerformerSampler()
    return Subject("performer-pytorch", attend, takes_omega=True, without_eps=without_eps, sampler=sampler)


@dataclass(frozen=True)
class PerformerSampler(Sampler):
    """gaussian_orthogonal_random_matrix of performer-pytorch, which should have N(0, I) rows."""

    name: ClassVar[str] = "gaussian_orthogonal_random_matrix"
    reference: ClassVar[str] = "performer-pytorch"
    gaussian_rows: ClassVar[bool] = True
    nested: ClassVar[bool] = False
    coupling: ClassVar[Coupling] = ORTHOGONAL

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        performer = importlib.import_module("performer_pytorch.performer_pytorch")
        importlib.import_module("torch").manual_seed(int(rng.integers(1 << 62)))
        return from_torch(performer.gaussian_orthogonal_random_matrix(num_projections, head_dim))
