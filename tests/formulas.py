"""Every map's kernel as its formula stands, all n x l of it at once: no shifts, no logs that are kept apart.

Numbers with 64 bits of mantissa and exponents up to 16000 (``Exact``) need none of it at norms up to 20. What a map
takes from the data and is itself the result of a search or of an eigendecomposition (``parameters``) is taken from it;
that it is the best choice is held elsewhere.
"""

import math
from typing import Any, NamedTuple

import numpy as np

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


def _series(x, y, degrees):
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
    return random + _series(asked.x, asked.y, range(map.exact))


def _tensorsketch(asked):
    """For each degree n the product of n count sketches' transforms, summed over all R frequencies."""
    map, size = asked.map, len(asked.omega)
    total, first = _series(asked.x, asked.y, range(map.exact)), 0
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
    "taylor": lambda asked: _series(asked.x, asked.y, range(asked.map.order + 1)), "relu": _relu, "elu": _elu,
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
