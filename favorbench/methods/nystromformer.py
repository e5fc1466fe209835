"""Attention through the means of segments: Nystromformer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from array_api_compat import device

from favorbench.errors import ScenarioError
from favorbench.methods.base import AttentionProblem, Estimate, Method, Shape
from favorbench.methods.segments import segment_means
from favorbench.numerics.arrays import Array, Features, array_namespace
from favorbench.numerics.logsum import accumulate, quotient, tiles, with_ones
from favorbench.numerics.streams import Streams
from favorbench.parameters import check_whole
from favorbench.registry import nearest


@dataclass(frozen=True)
class Nystromformer(Method):
    """softmax(x Y'^T) A^+ softmax(X' y^T) v with A = softmax(X' Y'^T), X' and Y' the means of m segments in a row.

    inverse: "newton" takes ``steps`` of Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4 from Z = A^T / (largest sum
    of a column of A), as released, which damps the small singular values of A; "pinv" takes the pseudo-inverse. Where
    m does not divide l the last segments have one token more. At m = l it is exact attention, as released. Weights
    have signs, and sum to 1 with a true inverse only. The answer to one query depends on all others.
    Xiong et al. 2021, arXiv 2102.03902, without the trained convolution.
    """

    name: ClassVar[str] = "nystromformer"
    reference: ClassVar[str] = "Xiong et al. 2021, arXiv 2102.03902"
    description: ClassVar[str] = "two softmax matrices through the means of m segments, an inverse between them"
    random: ClassVar[bool] = False
    exact_at_full_size: ClassVar[bool] = True
    permutation_invariant: ClassVar[bool] = False
    needs_all_rows: ClassVar[bool] = True
    look: ClassVar[Mapping[str, object]] = {"color": "C8", "linestyle": "-", "marker": "s", "markersize": 4}
    inverse: Literal["newton", "pinv"] = "newton"
    steps: int = 6

    def __post_init__(self) -> None:
        if self.inverse not in ("newton", "pinv"):
            near = nearest(str(self.inverse), ("newton", "pinv"))
            raise ScenarioError(f"inverse must be 'newton' or 'pinv', got {self.inverse!r}{near}")
        check_whole("steps", self.steps, 0, 100)
        if self.inverse == "pinv" and self.steps != 6:
            raise ScenarioError(f"steps play no part with inverse='pinv'; leave out steps={self.steps}")

    def estimates(self, problem: AttentionProblem, sizes: tuple[int, ...], streams: Streams) -> Iterator[Estimate]:
        query, key, value = problem[:3]
        for size in sizes:
            if size == key.shape[-2]:
                output = _softmax_mean(query, key, value)
                yield Estimate(size, size, output, None)
                continue
            of_queries, of_keys = segment_means(query, size), segment_means(key, size)
            summary = with_ones(_softmax_mean(of_queries, key, value))  # the rows of a softmax sum to 1
            summary = self._inverse(_softmax(of_queries, of_keys)) @ summary
            found = _softmax_mean(query, of_keys, summary)
            yield Estimate(size, size, found[..., :-1], None, found[..., -1:])

    def _inverse(self, matrix: Array) -> Array:
        """Of (..., m, m) with rows that sum to 1, or what stands for it."""
        xp, m = array_namespace(matrix), matrix.shape[-1]
        if self.inverse == "pinv":
            return xp.linalg.pinv(matrix, rtol=m * float(xp.finfo(matrix.dtype).eps))
        identity = xp.eye(m, dtype=matrix.dtype, device=device(matrix))
        found = xp.matrix_transpose(matrix) / xp.max(xp.sum(matrix, axis=-2, keepdims=True), axis=-1, keepdims=True)
        for _ in range(self.steps):
            product = matrix @ found
            found = 0.25 * found @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
        return found

    def multiplications(self, shape: Shape, size: int) -> float:
        """m (d + d_v) for each query, key and landmark, and 4 m^3 a step, or 11.5 m^3: a decomposition and a product.

        The singular value decomposition as in Golub & Van Loan, 21 m^3 operations.
        """
        if size >= shape.l:
            return float(shape.n * shape.l * (shape.d + shape.d_v))
        cubes = 4.0 * self.steps if self.inverse == "newton" else 11.5
        return float((shape.n + shape.l + size) * size * (shape.d + shape.d_v)) + cubes * size**3

    def matrix_entries(self, shape: Shape, size: int) -> int:
        """The matrix of landmarks, its inverse, and what a step holds beside them."""
        return 5 * size * size if size < shape.l else 0


def _softmax(x: Array, y: Array) -> Array:
    """softmax(x y^T), (..., n, m)."""
    xp = array_namespace(x)
    logits = x @ xp.matrix_transpose(y)
    weights = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
    return weights / xp.sum(weights, axis=-1, keepdims=True)


def _softmax_mean(x: Array, y: Array, value: Array) -> Array:
    """softmax(x y^T) value, in tiles: (..., n, d_v)."""
    xp, right = array_namespace(x), with_ones(value)
    return xp.concat(
        [
            quotient(accumulate(None, Features(None, x[..., rows, :] @ xp.matrix_transpose(y)), right))[0]
            for rows in tiles(x.shape[-2], y.shape[-2], x)
        ],
        axis=-2,
    )
