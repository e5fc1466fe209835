"""What is audited: other people's implementations, each as a function of q, k, v and projections."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from favorbench.errors import EstimatorError, ScenarioError
from favorbench.methods import METHODS, PREFIXES, Method, get_method
from favorbench.methods.attention import method_attention
from favorbench.numerics.backend import from_torch, to_torch
from favorbench.registry import import_object, nearest
from favorbench.samplers import Sampler
from favorbench.samplers.coupling import ORTHOGONAL, Coupling

#: (q, k, v, omega) -> output
Implementation = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Any]


class Subject(NamedTuple):
    """An implementation: how to call it, whether it uses the omega it is given, itself without eps, its sampler.

    method: of a method of ours, or a function that is asked as one.
    """

    name: str
    attend: Implementation
    takes_omega: bool
    without_eps: Implementation | None = None
    sampler: Sampler | None = None
    method: Method | None = None

    def output(self, *arrays: np.ndarray) -> np.ndarray:
        """Of (q, k, v, omega), as float64, (L, d_v). Raises EstimatorError."""
        query, _, value, _ = arrays
        try:
            output = np.asarray(self.attend(*arrays), dtype=np.float64)
        except Exception as error:  # another's code may fail in any way
            raise EstimatorError(f"audit: {self.name} failed: {type(error).__name__}: {error}") from error
        expected = (query.shape[0], value.shape[1])
        if output.shape != expected:
            raise EstimatorError(
                f"audit: {self.name} returned shape {output.shape}; (L, d_v) = {expected} was expected"
            )
        return output


def subject_of(name: str, method_size: int) -> Subject:
    """The implementation of this name; method_size: at which a method is asked. Raises ScenarioError."""
    if name == "performer-pytorch":
        return _performer_pytorch()
    first = name.split(":")[0].partition("(")[0].strip()
    known = [*(member.name for member in METHODS), *(prefix.prefix for prefix in PREFIXES)]
    if first in known:
        return _of_method(name, method_size)
    if ":" not in name:
        near = nearest(first, [*known, "performer-pytorch"])
        raise ScenarioError(
            f"audit: unknown {name!r}{near}; allowed: performer-pytorch, a method, or module:function of "
            "(q, k, v[, omega]) or (query, key, value, size, rng)"
        )
    function = import_object("implementation", name)
    if inspect.isfunction(function) and len(inspect.signature(function).parameters) == 5:
        return _of_method(name, method_size)
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


def _of_method(name: str, size: int) -> Subject:
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
