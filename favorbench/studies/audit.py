"""Implementations of other projects, tested on the same claims: distance to exact and uniform output, eps, sampler.

They are called as functions of q, k, v and projections, and are methods of a sweep.
"""

import importlib
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.exact import exact_attention
from favorbench.attention.linear import linear_attention
from favorbench.engine.plan import plan
from favorbench.engine.scenario import Names, check_labels, load_scenario, override
from favorbench.engine.study import Study
from favorbench.errors import ScenarioError
from favorbench.inputs import Head, Inputs, get_input
from favorbench.methods import AttentionProblem, Estimate, Method, Shape, get_method, method_attention
from favorbench.methods.features import MAX_PROJECTIONS
from favorbench.methods.function import ArrayFunction, output_on_host, signature_of
from favorbench.numerics.arrays import array_namespace, on_host
from favorbench.numerics.backend import to_torch
from favorbench.numerics.machine import one_core
from favorbench.numerics.streams import Streams, stream
from favorbench.progress import Progress
from favorbench.registry import canonical, import_object, label, nearest
from favorbench.results.summary import ROUNDING
from favorbench.samplers import Sampler, get_sampler
from favorbench.samplers.coupling import ORTHOGONAL
from favorbench.statistics import median_interval
from favorbench.studies.verify import laws
from favorbench.studies.verify.checks import HOLDS, REFUTED, judged
from favorbench.studies.verify.subjects import NAMES

NUM_PROJECTIONS = 256
METHOD_SIZE = 64  # of methods, on 256 and 512 keys
#: Below this share of exact attention's own distance from uniform attention, an output is called uniform.
UNIFORM_SHARE = 0.2

#: Defaults of a saved audit: a run of four heads of L = 512, d = 32 and Gaussians of that shape takes seconds.
SIZES = (64, 256)
INPUTS = ("gaussian(std=0.5)", "gaussian", "minilm")
BASELINES = ("uniform", "taylor-1", "sampled-keys", "best-rank")

#: (q, k, v, omega) -> output
Attend = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Any]


class Subject(NamedTuple):
    """An implementation: how to call it, whether it uses omega, itself without eps, its sampler.

    method: for a method of ours, or a function with the parameters of one.
    """

    name: str
    attend: Attend
    takes_omega: bool
    without_eps: Attend | None = None
    sampler: Sampler | None = None
    method: Method | None = None

    def output(self, *arrays: np.ndarray) -> np.ndarray:
        """The output for (q, k, v, omega), float64, (L, d_v). Raises EstimatorError."""
        output = output_on_host(f"audit: {self.name}", partial(self.attend, *arrays), arrays[0], arrays[2])
        return output.astype(np.float64)


def subject_of(name: str, method_size: int) -> Subject:
    """The implementation of this name; method_size: the size of a method. Raises ScenarioError."""
    if name == "performer-pytorch":
        return _performer_pytorch()
    first = name.split(":")[0].partition("(")[0].strip()
    if first in NAMES["method"] or (":" in name and "(" in name):  # a function has no parameters to give
        return _method_subject(name, method_size)
    if ":" not in name:
        near = nearest(first, [*NAMES["method"], "performer-pytorch"])
        raise ScenarioError(
            f"audit: unknown {name!r}{near}; allowed: performer-pytorch, a method, or module:function of "
            "(q, k, v[, omega]) or (query, key, value, size, rng)"
        )
    function = import_object("implementation", name)
    if isinstance(function, Method) or (isinstance(function, type) and issubclass(function, Method)):
        return _method_subject(name, method_size)
    if not callable(function):
        raise ScenarioError(f"audit: {name!r} is a {type(function).__name__}, not a function of (q, k, v[, omega])")
    try:
        parameters = signature_of(function).parameters.values()
    except ValueError:  # functions written in C have none
        parameters = ()
    more = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][3:]
    required = [p.default is p.empty for p in more]  # others, such as mask=None, are left alone
    if required == [True, True] or [p.name for p in more] == ["size", "rng"]:
        return _method_subject(name, method_size)
    takes_omega, called = any(required) or [p.name for p in more[:1]] == ["omega"], ArrayFunction(function)
    return Subject(name, lambda *arrays: called(arrays if takes_omega else arrays[:3]), takes_omega)


def _method_subject(name: str, size: int) -> Subject:
    """A method at one size; its generator is seeded by the projections, which are drawn anew for each run."""
    method = get_method(name)

    def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, omega: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(np.frombuffer(omega[0].tobytes(), np.uint32))
        return method_attention(query, key, value, method, size, rng)

    return Subject(name, attend, takes_omega=False, method=method)


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
        return on_host(fast(*(to_torch(a)[None, None] for a in (query, key, value))))[0, 0]

    def without_eps(query: np.ndarray, key: np.ndarray, value: np.ndarray, omega: np.ndarray) -> np.ndarray:
        projection = to_torch(omega)
        features = [
            performer.softmax_kernel(to_torch(a)[None, None], projection_matrix=projection, is_query=is_query, eps=0.0)
            for a, is_query in ((query, True), (key, False))
        ]
        return on_host(performer.linear_attention(*features, to_torch(value)[None, None]))[0, 0]

    return Subject("performer-pytorch", attend, True, without_eps, PerformerSampler())


@dataclass(frozen=True)
class PerformerSampler(Sampler):
    """gaussian_orthogonal_random_matrix of performer-pytorch, which should have N(0, I) rows."""

    name = "gaussian_orthogonal_random_matrix"
    reference = "performer-pytorch"
    gaussian_rows = True
    nested = False
    coupling = ORTHOGONAL

    def sample(self, rng: np.random.Generator, num_projections: int, head_dim: int) -> np.ndarray:
        performer = importlib.import_module("performer_pytorch.performer_pytorch")
        importlib.import_module("torch").manual_seed(int(rng.integers(1 << 62)))
        return on_host(performer.gaussian_orthogonal_random_matrix(num_projections, head_dim))


@dataclass(frozen=True)
class Implementation(Method):
    """A function of (q, k, v), or of (q, k, v, omega) with orthogonal projections, as a method without claims."""

    reference = "audited"
    description = "an implementation that is audited"
    arrays = "host"
    permutation_invariant = False
    name: str = field(init=False, default="")  # pyright: ignore[reportIncompatibleVariableOverride]
    every_size: bool = field(init=False, default=True)  # pyright: ignore[reportIncompatibleVariableOverride]
    subject: Subject = field(init=False, default=None, repr=False)  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def of(subject: Subject) -> "Implementation":
        """Without projections there is one answer for all sizes."""
        made = Implementation()
        vars(made).update(name=subject.name, every_size=subject.takes_omega, subject=subject)
        return made

    def largest_size(self, shape: Shape) -> int:
        return MAX_PROJECTIONS

    def estimates(self, problem: AttentionProblem, sizes: tuple[int, ...], streams: Streams) -> Iterator[Estimate]:
        (rng,), d = streams.generators, problem.query.shape[-1]
        query, key = problem.unscaled()
        xp = array_namespace(query)
        omega = get_sampler("orthogonal").sample(rng, sizes[-1], d)  # nested: a size draws what the others draw
        for size in sizes:
            output, ones = (
                self.subject.output(xp.asarray(query, copy=True), xp.asarray(key, copy=True), value, omega[:size])
                for value in (xp.asarray(problem.value, copy=True), xp.ones_like(problem.value))
            )
            shown, features = (size, size) if self.every_size else (None, 0)
            yield Estimate(shown, features, output, None, ones[..., :1])


def study_of(
    names: Sequence[str],
    runs: int,
    seed: int,
    inputs: str | None = None,
    num_projections: str | None = None,
    layout: str | None = None,
) -> Study:
    """The sweep that an audit is saved as, with FAVOR+ and trivial answers.

    Raises ScenarioError for unknown names, and for inputs or sizes that are not available.
    """
    given: Mapping[str, Any] = {
        "maps": "positive", "samplers": "orthogonal", "baselines": BASELINES, "inputs": inputs or INPUTS,
        "num_projections": num_projections or SIZES, "trials": runs, "seed": seed, "layout": layout,
        "causal": False,  # an implementation takes no mask, whatever the model of the inputs does
    }  # fmt: skip
    loaded = load_scenario(None, given if inputs else {**given, "seq_len": 512, "head_dim": 32})
    scenario = override(loaded, name="audit", title=f"audit of {', '.join(names)}")
    subjects = {name: subject_of(name, max(scenario.sizes(32))) for name in names}
    members = {name: subject.method or Implementation.of(subject) for name, subject in subjects.items()}
    specs = [
        name if isinstance(subject, Implementation) else canonical(name, subject) for name, subject in members.items()
    ]
    check_labels("methods", specs, [label(member) for member in members.values()], scenario.maps)
    return Study.of(scenario.model_copy(update={"methods": Names.of(specs, members.values())}))


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
    rows, finite = [], True
    for run in range(runs):
        omega = get_sampler("orthogonal").sample(stream(seed, "audit", "omega", name, run), size, query.shape[-1])
        output = subject.output(query, key, value, omega)
        finite = finite and bool(np.isfinite(output).all())
        distances = {"error against exact": _distance(output, exact, exact)}
        if differ:
            distances["distance to uniform"] = _distance(output, uniform, exact - uniform)
        if subject.takes_omega:
            plain = linear_attention(query, key, value, omega, "positive")
            distances["distance to FAVOR+ on the same omega"] = _distance(output, plain, plain)
        if subject.without_eps is not None:
            without = np.asarray(subject.without_eps(query, key, value, omega), dtype=np.float64)
            distances["effect of eps"] = _distance(output, without, without)
        rows.append(distances)
    for measure in rows[0]:
        values = np.nan_to_num([distances[measure] for distances in rows], nan=math.inf, posinf=math.inf)
        failed = int(np.sum(~np.isfinite(values)))
        low, high, _ = median_interval(values)
        median, remark = float(np.median(values)), ""
        if measure == "distance to uniform" and median < UNIFORM_SHARE:
            remark = f"its output is within {median:.1%} of the mean of V"
        if measure == "error against exact" and failed:
            remark = f"it fails here: {'its error' if finite else 'the output'} is not finite"
            remark += f" in {failed} of {runs} runs" * (failed < runs)
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
