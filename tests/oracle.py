"""The plain definitions that maps are compared with: every kernel as its formula stands, and attention from it.

All n x l kernel values at once: no tiles, no chunks, no running maxima, no prefix sums, no shifts, no separate logs.
Numbers with 64 bits of mantissa and exponents up to 16000 (``Exact``) need none of it at norms up to 20. What a map
takes from the data and is itself the result of a search or of an eigendecomposition (``parameters``) is taken from it;
that it is the best choice is held elsewhere. The methods are in ``tests.definitions``.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.linear import attention_estimates
from favorbench.attention.problem import AttentionProblem, SampledMap
from favorbench.maps import Sample, get_map
from favorbench.samplers import get_sampler

EPS = float(np.finfo(np.float64).eps)
Exact = np.longdouble


class Kernel(NamedTuple):
    """Kernel values (n, l), and the sum of the absolute values of all terms that they were added up from."""

    values: np.ndarray
    terms: np.ndarray

    def __add__(self, other):  # pyright: ignore[reportIncompatibleMethodOverride]
        return Kernel(self.values + other.values, self.terms + other.terms)

    def times(self, factor):
        return Kernel(self.values * factor, self.terms * abs(factor))


class Asked(NamedTuple):
    """One question to the oracle: scaled points, omega's first R rows, all that was drawn beside them, the map."""

    x: np.ndarray
    y: np.ndarray
    omega: np.ndarray
    extra: Any
    map: Any


def _product(left, right):
    """phi(x).phi(y) / R from features (n, R) and (l, R)."""
    size = left.shape[-1]
    return Kernel(left @ right.T / size, np.abs(left) @ np.abs(right).T / size)


def _half(x):
    return np.sum(x * x, axis=-1, keepdims=True) / 2


def _trigonometric(asked, power=1.0, turns=1.0):
    sides = []
    for points in asked[:2]:
        angle = turns * points @ asked.omega.T
        sides.append([np.exp(power * _half(points)) * f(angle) for f in (np.cos, np.sin)])
    return _product(sides[0][0], sides[1][0]) + _product(sides[0][1], sides[1][1])


def _phase(asked):
    return _product(*(np.exp(_half(p)) * math.sqrt(2.0) * np.cos(p @ asked.omega.T + asked.extra) for p in asked[:2]))


def _positive(asked, sign=1.0):
    return _product(*(np.exp(sign * p @ asked.omega.T - _half(p)) for p in asked[:2]))


def _hyperbolic(asked):
    return (_positive(asked) + _positive(asked, -1.0)).times(0.5)


def _dense(asked):
    """exp(sum_l [log(1 - 4 a_l)/4 + a_l (v_l.w)^2 + sqrt(1 - 4 a_l) (v_l.w)(v_l.x')] - |x'|^2/2)."""
    parameters = asked.map.parameters
    dim = asked.x.shape[-1]
    axes = np.eye(dim) if parameters.axes is None else parameters.axes
    a = (1 - 1 / parameters.rho[0].astype(Exact)) / 8
    turned, sides = asked.omega @ axes.astype(Exact), []
    for points, matrix in ((asked.x, parameters.query_matrix), (asked.y, parameters.key_matrix)):
        image = points if matrix is None else points @ matrix.T.astype(Exact)
        log = np.sum(np.log(1 - 4 * a) / 4 + a * turned**2, axis=-1)
        log = log + (image @ axes) @ (np.sqrt(1 - 4 * a) * turned).T - _half(image)
        sides.append(np.exp(log))
    return _product(*sides)


def _hybrid(asked):
    """lam hyperbolic + (1 - lam) trig, lam = 1/2 - sum_i sgn(t_i.x) sgn(t_i.y) / (2 n)."""
    signs = [np.where(points @ asked.extra.T >= 0, 1.0, -1.0) for points in asked[:2]]
    weight = 0.5 - signs[0] @ signs[1].T / (2 * len(asked.extra))
    parts = _hyperbolic(asked), _trigonometric(asked)
    values = weight * parts[0].values + (1.0 - weight) * parts[1].values
    return Kernel(values, parts[0].terms + parts[1].terms)  # the features of both are there, whatever the weight is


def _integers(asked, exponents, log_weights):
    """prod_l x_l^(w_l) / sqrt(w_l! P(w_l)), 0^0 = 1."""
    features = [np.ones((len(points), len(exponents)), dtype=Exact) for points in asked[:2]]
    for phi, points in zip(features, asked[:2], strict=True):
        for i in range(points.shape[-1]):
            phi *= points[:, i, None] ** exponents[:, i]
        phi *= np.exp(-log_weights / 2)
    return _product(*features)


def _counts(limits, uniform, most):
    """How many of the cumulative probabilities P(w <= 0), P(w <= 1), ... lie below each uniform number."""
    total, found = Exact(0), np.zeros(uniform.shape)
    for k in range(most):
        total += limits(k)
        found += uniform > total
    return found


def _poisson(asked):
    rate = float(asked.map.rate or np.asarray(asked.map.fitted.values).item())
    mass = lambda k: np.exp(Exact(k) * np.log(Exact(rate)) - Exact(rate) - math.lgamma(k + 1))  # noqa: E731
    w = _counts(mass, asked.extra, int(rate + 12.0 * math.sqrt(rate) + 20))
    return _integers(asked, w, np.sum(w * np.log(Exact(rate)) - rate, axis=-1))


def _geometric(asked):
    p = float(asked.map.p or np.asarray(asked.map.fitted.values).item())
    w = np.floor(np.log1p(-asked.extra) / np.log1p(-p))
    factorials = np.vectorize(math.lgamma)(w + 1.0)
    return _integers(asked, w, np.sum(factorials + w * np.log1p(Exact(-p)) + np.log(Exact(p)), axis=-1))


def series(x, y, degrees):
    """sum_n (x.y)^n / n!, from the monomials."""
    values, terms = x @ y.T, np.abs(x) @ np.abs(y).T
    return Kernel(*(sum((s**n / math.factorial(n) for n in degrees), 0.0 * s) for s in (values, terms)))


def _maclaurin(asked):
    """A random degree N and N random vectors for each feature: prod_j w_j.x / sqrt(N! P(N)); low degrees in full."""
    map, extra = asked.map, asked.extra.astype(Exact)
    mass = {n: (Exact(map.mean) / (1.0 + map.mean)) ** n for n in range(map.exact, map.degree + 1)}
    if map.law == "poisson":
        mass = {n: Exact(map.mean) ** n / math.factorial(n) for n in mass}
    sides = []
    for points in asked[:2]:
        phi, terms = (np.ones((len(points), len(extra)), dtype=Exact) for _ in range(2))
        for r, vectors in enumerate(extra):
            degree = int(map.degree - np.sum(vectors[:, -1]))
            for w in vectors[:degree, :-1]:
                phi[:, r] *= points @ w
                terms[:, r] *= np.abs(points) @ np.abs(w)
            weight = math.factorial(degree) * mass[degree] / sum(mass.values())
            phi[:, r] /= np.sqrt(weight)
            terms[:, r] /= np.sqrt(weight)
        sides.append((phi, terms))
    random = Kernel(*(a @ b.T / len(extra) for a, b in zip(*sides, strict=True)))
    return random + series(asked.x, asked.y, range(map.exact))


def _tensorsketch(asked):
    """For each degree n the product of n count sketches' transforms, summed over all R frequencies."""
    map, size = asked.map, len(asked.omega)
    total, first = series(asked.x, asked.y, range(map.exact)), 0
    for n in range(map.exact, map.degree + 1):
        sides = []
        for points in asked[:2]:
            phi, terms = np.ones((len(points), size), dtype=np.clongdouble), np.ones((len(points), size))
            for signed in asked.extra[first : first + n]:
                buckets, signs = np.abs(signed) - 1, np.sign(signed)
                turns = np.outer(buckets, np.arange(size)) % size
                phi *= points @ (signs[:, None] * np.exp(-2j * np.pi * turns.astype(Exact) / size))
                terms *= np.sum(np.abs(points), axis=-1, keepdims=True)
            sides.append((phi, terms))
        first += n
        values = np.real(sides[0][0] @ np.conj(sides[1][0]).T) / size / math.factorial(n)
        total += Kernel(values, sides[0][1] @ sides[1][1].T / size / math.factorial(n))
    return total


def _relu(asked):
    return _product(*(np.maximum(points @ asked.omega.T, 0.0) + asked.map.eps for points in asked[:2]))


def _elu(asked):
    sides = [np.where(points > 0, 1.0 + points, np.exp(np.minimum(points, 0.0))) for points in asked[:2]]
    return _product(*sides).times(asked.x.shape[-1])


def _exp_tutorial(asked):
    return _product(*(np.exp(points @ asked.omega.T) + asked.map.eps for points in asked[:2]))


def _positive_eps(asked):
    """Shifts without the norms: of a query its own largest projection, of keys that of all keys. Then eps."""
    of_query, of_key = (points @ asked.omega.T for points in asked[:2])
    query = np.exp(of_query - _half(asked.x) - np.max(of_query, axis=-1, keepdims=True)) + asked.map.eps
    return _product(query, np.exp(of_key - _half(asked.y) - np.max(of_key)) + asked.map.eps)


def _centre(asked):
    """exp(b.x - a.b) exp(a.y) times the kernel of x - a and y - b, for the means a of x and b of y."""
    a, b = (np.mean(points, axis=0) for points in asked[:2])
    inside = kernel_of(asked._replace(x=asked.x - a, y=asked.y - b, map=asked.map.wrapped))
    factor = np.exp(asked.x @ b - a @ b)[:, None] * np.exp(asked.y @ a)
    return Kernel(inside.values * factor, inside.terms * factor)


KERNELS = {
    "trig": _trigonometric, "phase": _phase, "positive": _positive, "hyperbolic": _hyperbolic, "oprf": _dense,
    "saderf": _dense, "sderf": _dense, "aderf": _dense, "aderf-sderf": _dense, "hybrid": _hybrid, "poisson": _poisson,
    "geometric": _geometric, "maclaurin": _maclaurin, "tensorsketch": _tensorsketch,
    "taylor": lambda asked: series(asked.x, asked.y, range(asked.map.order + 1)), "relu": _relu, "elu": _elu,
    "trig-blog": lambda asked: _trigonometric(asked, turns=2.0 * math.pi),
    "trig-tutorial": lambda asked: _trigonometric(asked, power=-1.0), "exp-tutorial": _exp_tutorial,
    "positive-eps": _positive_eps,
}  # fmt: skip


def kernel_of(asked):
    """The kernel estimates of a map, by its formula."""
    prefix = getattr(asked.map, "prefix", "")
    if prefix == "calibrated":  # before it is calibrated, so of a map that takes nothing from data
        return kernel_of(asked._replace(map=asked.map.wrapped))
    return _centre(asked) if prefix == "centre" else KERNELS[asked.map.name](asked)


# attention


class Case(NamedTuple):
    """A problem: length, head dimension, norms of scaled queries and keys, R; causal: as many queries as keys.

    Keys have one norm, so that none has all the weight for being short. Under a mask they grow to it, so that running
    maxima move from chunk to chunk.
    """

    length: int
    head_dim: int
    query_norm: float
    key_norm: float
    num_projections: int
    causal: bool = False
    value_dim: int = 2
    batch: tuple[int, ...] = ()
    num_queries: int = 7

    def arrays(self):
        """Unscaled queries and keys, means away from 0, and values."""
        rng = np.random.default_rng([self.length, self.head_dim, self.causal])
        count = self.length if self.causal else self.num_queries
        points = []
        for norm, n in ((self.query_norm, count), (self.key_norm, self.length)):
            spread = rng.normal(size=(*self.batch, n, self.head_dim)) + rng.normal(size=self.head_dim)
            points.append(norm * self.head_dim**0.25 * spread / np.linalg.norm(spread, axis=-1, keepdims=True))
        if self.causal:
            points[1] *= np.linspace(0.5, 1.0, self.length)[:, None]
        return points[0], points[1], rng.normal(size=(*self.batch, self.length, self.value_dim))


#: Edges of chunks of positions (128) and of tiles of keys (2048; 1024 under a mask).
EDGES = (1, 2, 127, 128, 129, 130, 257, 1024, 2047, 2048, 2049, 2050, 5000)


def rows_near_edges(case):
    """The queries that are compared: all of a few, else those around every edge."""
    count = case.length if case.causal else case.num_queries
    if count <= 20:
        return np.arange(count)
    near = {e + step for e in EDGES for step in (-2, -1, 0)} | {count - 2, count - 1}
    return np.array(sorted(i for i in near if 0 <= i < count))


def attention_of(kernel, value, seen):
    """sum_j K_ij v_j / sum_j K_ij over the keys that each query sees, and the condition number of the sums."""
    values, terms = np.where(seen, kernel.values, 0.0), np.where(seen, kernel.terms, 0.0)
    total = np.sum(values, axis=-1, keepdims=True)
    return values @ value / total, np.sum(terms, axis=-1, keepdims=True) / np.abs(total)


def exact(case):
    """The rows that are compared, softmax attention there (..., rows, d_v), and the rounding that is allowed."""
    query, key, value = (a.astype(Exact) for a in case.arrays())
    rows = rows_near_edges(case)
    logits = np.einsum("...id,...jd->...ij", query[..., rows, :], key) / np.sqrt(Exact(case.head_dim))
    seen = np.arange(case.length) <= rows[:, None] if case.causal else True
    weights = np.where(seen, np.exp(logits), 0.0)
    output = np.einsum("...ij,...jv->...iv", weights, value) / np.sum(weights, axis=-1, keepdims=True)
    largest = float(np.max(np.abs(logits)))
    norms = float(np.max(np.linalg.norm(query, axis=-1)) * np.max(np.linalg.norm(key, axis=-1))) / case.head_dim**0.5
    return rows, output, EPS * (largest + norms + case.head_dim + case.length) * float(np.max(np.abs(value)))


def sample_for(feature_map, case, sampler="orthogonal"):
    """One sample, its own for each case."""
    rng = np.random.default_rng([7, case.length, case.head_dim])
    omega = get_sampler(sampler).sample(rng, case.num_projections, case.head_dim)
    return Sample(omega, feature_map.draw_extra(rng, case.num_projections, case.head_dim))


def sizes_of(feature_map, case):
    """Several R at once, where the map has them."""
    count = case.num_projections
    return tuple(sorted({1, -(-count // 3), count})) if feature_map.nested else (count,)


def estimated(feature_map, case):
    """The output of favorbench: (sizes, ..., n, d_v)."""
    query, key, value = case.arrays()
    sample = sample_for(feature_map, case)
    estimator = SampledMap(feature_map, sample.extra, sizes_of(feature_map, case))
    tiles = attention_estimates(AttentionProblem.of(query, key, value, case.causal), sample.omega, [estimator])
    return np.concatenate([tile.output for tile in tiles], axis=-2)


class Compared(NamedTuple):
    """The largest error over what rounding explains, nan counting as infinite, and the share of rows compared."""

    worst: float
    share: float


def compared(spec, case):
    """Linear attention against the oracle, for every R, head and row near an edge.

    Rounding: eps for each operation that a term goes through, times the condition number of the sums. Rows that it
    leaves no digit of are not compared.
    """
    feature_map = get_map(spec)
    sample, outputs, rows = sample_for(feature_map, case), estimated(feature_map, case), rows_near_edges(case)
    # maps that look at all queries cannot be causal; elsewhere all rows are compared
    assert case.causal or len(rows) == case.num_queries
    query, key, value = (a.reshape(-1, *a.shape[-2:]) for a in case.arrays())
    outputs = outputs.reshape(len(outputs), -1, *outputs.shape[-2:])[..., rows, :]
    seen = np.arange(case.length) <= rows[:, None] if case.causal else np.ones((len(rows), case.length), dtype=bool)
    worst, rows_compared = [0.0], []
    for head, (q, k, v) in enumerate(zip(query, key, value, strict=True)):
        x, y = q * case.head_dim**-0.25, k * case.head_dim**-0.25
        fitted = feature_map.fit(x, y, sample.omega)
        growth = EPS * _operations(x, y, sample.omega, case)
        for size, found in zip(sizes_of(feature_map, case), outputs[:, head], strict=True):
            extra = _first(sample.extra, size, case)
            asked = Asked(*(a.astype(Exact) for a in (x[rows], y, sample.omega[:size])), extra, fitted)
            kernel = kernel_of(asked)
            expected, condition = attention_of(kernel, v.astype(Exact), seen)
            allowed = growth * condition * (np.max(np.abs(v)) + np.abs(expected))
            with_digits = ~(growth * condition > 0.1)[:, 0]
            error = np.asarray(np.abs(found - expected) / allowed, dtype=float)[with_digits]
            worst.append(float(np.max(np.where(np.isnan(error), np.inf, error), initial=0.0)))
            rows_compared.append(float(np.mean(with_digits)))
    return Compared(max(worst), float(np.mean(rows_compared)))


def _first(extra, size, case):
    """The sample of the first R projections, with all that they share (the hybrid's vectors, hashes)."""
    return extra[:size] if extra is not None and len(extra) == case.num_projections else extra


def _operations(x, y, omega, case):
    """The relative error of a term in units of eps: logs and angles, as long as they are, and the lengths of sums."""
    norm = [float(np.max(np.linalg.norm(a, axis=-1))) for a in (omega, x, y)]
    logs = 2.0 * math.pi * norm[0] * (norm[1] + norm[2]) + norm[1] ** 2 + norm[2] ** 2 + norm[0] ** 2
    return logs + case.head_dim + len(omega) + case.length
