"""Linear randomized attention: positive random features whose laws follow the queries and keys."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from favorbench.methods.base import Shape
from favorbench.methods.segments import segment_means
from favorbench.methods.summaries import KeySummary, KeySummaryMethod, Queries, Tokens
from favorbench.numerics.arrays import Array, Features, array_namespace, half_squared_norm
from favorbench.numerics.logsum import Accumulator, accumulate, merge, tiles, with_ones
from favorbench.numerics.streams import Streams


@dataclass(frozen=True)
class Lara(KeySummaryMethod):
    """K(x, y) = sum_c xi(x, w_c) xi(y, w_c) / sum_c' xi(mu_c', w_c), with xi(x, w) = exp(w.x - |x|^2 / 2).

    w_c ~ N(mu_c, I), one for each of m segments in a row, and mu_c the sum of its mean query and mean key. The
    quotient is the density of N(0, I) over the sum of those of all proposals, the balance heuristic: K is positive and
    its mean is exp(x.y), though its variance may be infinite. The answer to one query depends on all others.
    Zheng et al. 2022 ("LARA"), arXiv 2204.04667, with the parameter-free proposals. Their code divides what it adds to
    mu_c by d^1/4 (and adds nothing outside training): that law is not the one that it divides by.
    """

    name: ClassVar[str] = "lara"
    reference: ClassVar[str] = "Zheng et al. 2022, arXiv 2204.04667"
    description: ClassVar[str] = "positive features around the mean query and key of m segments, reweighted"
    convex: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    permutation_invariant: ClassVar[bool] = False
    needs_all_rows: ClassVar[bool] = True
    look: ClassVar[Mapping[str, object]] = {"color": "C9", "linestyle": "--", "marker": "v", "markersize": 4}

    def multiplications(self, shape: Shape, size: int) -> float:
        """m (d + d_v) for each query and key, and m^2 d for the proposals."""
        return float((shape.n + shape.l) * size * (shape.d + shape.d_v) + size * size * shape.d)

    def pair_multiplications(self, shape: Shape, size: int) -> float:
        return float((shape.n + shape.l) * size * shape.d + shape.n * shape.l * size)

    def summaries(
        self, tokens: Tokens, queries: Queries, sizes: tuple[int, ...], streams: Streams
    ) -> Iterator[KeySummary]:
        xp, d = array_namespace(tokens.key), tokens.key.shape[-1]
        noise = xp.astype(streams.draw(lambda rng: rng.normal(size=(sizes[-1], d))), tokens.key.dtype, copy=False)
        for size in sizes:
            mean = segment_means(queries.query, size) + segment_means(tokens.key, size)
            omega = mean + noise[..., :size, :]
            yield LaraSummary.of(tokens, omega, mean)


@dataclass(frozen=True)
class LaraSummary:
    """omega (..., m, d); state: for each of its rows the sum over keys of xi(y, w) [v, 1]; log_density (..., 1, m):
    of all proposals at each row, over N(0, I)."""

    tokens: Tokens
    omega: Array
    log_density: Array
    state: Accumulator

    @staticmethod
    def of(tokens: Tokens, omega: Array, mean: Array) -> "LaraSummary":
        """From the rows and the centres (..., m, d) of their proposals."""
        xp, state, right = array_namespace(omega), None, with_ones(tokens.value)
        for rows in tiles(tokens.length, omega.shape[-2], tokens.key):
            log_keys = Features(None, _log_feature(tokens.key[..., rows, :], omega))
            state = merge(state, accumulate(None, log_keys.transposed(), right[..., rows, :]))
        assert state is not None
        logs = _log_feature(mean, omega)
        peak = xp.max(logs, axis=-2, keepdims=True)
        density = xp.log(xp.sum(xp.exp(logs - peak), axis=-2, keepdims=True)) + peak
        return LaraSummary(tokens, omega, density, state)

    def sums(self, queries: Queries) -> Accumulator:
        xp = array_namespace(self.omega)
        logs = _log_feature(queries.query, self.omega) - self.log_density + xp.matrix_transpose(self.state.log_peak)
        return accumulate(None, Features(None, logs), self.state.total)

    def kernel(self, queries: Queries, keys: slice) -> Features:
        xp = array_namespace(self.omega)
        of_query = Features(None, _log_feature(queries.query, self.omega) - self.log_density)
        of_key = Features(None, _log_feature(self.tokens.key[..., keys, :], self.omega))
        peak_x, peak_y = (xp.max(block.log_scale, axis=-1, keepdims=True) for block in (of_query, of_key))
        product = of_query.relative_to(peak_x) @ xp.matrix_transpose(of_key.relative_to(peak_y))
        return Features(product, peak_x + xp.matrix_transpose(peak_y))


def _log_feature(x: Array, omega: Array) -> Array:
    """log xi(x, w) for every pair of rows: (..., n, m)."""
    return x @ array_namespace(x).matrix_transpose(omega) - half_squared_norm(x)
