"""Implementations of other projects: as functions of q, k, v and projections, and as methods of a sweep."""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from favorbench.engine.scenario import Names, load_scenario, override
from favorbench.engine.study import Study
from favorbench.errors import ScenarioError
from favorbench.methods import METHODS, PREFIXES, AttentionProblem, Estimate, Method, get_method, method_attention
from favorbench.methods.function import ArrayFunction, output_on_host
from favorbench.numerics.arrays import array_namespace, on_host
from favorbench.numerics.backend import to_torch
from favorbench.numerics.streams import Streams
from favorbench.registry import canonical, import_object, nearest
from favorbench.samplers import Sampler, get_sampler
from favorbench.samplers.coupling import ORTHOGONAL

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
    known = [*(member.name for member in METHODS), *(prefix.prefix for prefix in PREFIXES)]
    if first in known:
        return _method_subject(name, method_size)
    if ":" not in name:
        near = nearest(first, [*known, "performer-pytorch"])
        raise ScenarioError(
            f"audit: unknown {name!r}{near}; allowed: performer-pytorch, a method, or module:function of "
            "(q, k, v[, omega]) or (query, key, value, size, rng)"
        )
    function = import_object("implementation", name)
    if not callable(function):
        raise ScenarioError(f"audit: {name!r} is a {type(function).__name__}, not a function of (q, k, v[, omega])")
    parameters = inspect.signature(function).parameters.values()
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
) -> Study:
    """The sweep that an audit is saved as, with FAVOR+ and trivial answers.

    Raises ScenarioError for unknown names, and for inputs or sizes that are not available.
    """
    given: Mapping[str, Any] = {
        "maps": "positive", "samplers": "orthogonal", "baselines": BASELINES, "inputs": inputs or INPUTS,
        "num_projections": num_projections or SIZES, "trials": runs, "seed": seed,
    }  # fmt: skip
    loaded = load_scenario(None, given if inputs else {**given, "seq_len": 512, "head_dim": 32})
    scenario = override(loaded, name="audit", title=f"audit of {', '.join(names)}")
    subjects = {name: subject_of(name, max(scenario.sizes(32))) for name in names}
    members = {name: subject.method or Implementation.of(subject) for name, subject in subjects.items()}
    specs = [
        name if isinstance(subject, Implementation) else canonical(name, subject) for name, subject in members.items()
    ]
    return Study.of(scenario.model_copy(update={"methods": Names.of(specs, members.values())}))
