"""What one wrong line in methods of segments, landmarks, hashes and halving does: verify refutes each of these mutants.

As in test_mutations_methods: named by what is broken, and what is right is not refuted.
"""

from collections.abc import Callable

import numpy as np
import pytest

from favorbench.methods import (
    eva,
    guarded,
    hashed,
    hyperattention,
    kdeformer,
    landmarks,
    lara,
    monarch,
    nystrom,
    nystromformer,
    prefixes,
    segments,
    thinformer,
)
from tests.test_mutations import mutate
from tests.test_mutations_methods import is_refuted

NYSTROMFORMER = ("nystromformer", "nystromformer(inverse='pinv')")
MONARCH = ("monarch", "monarch(steps=2)")
EVA = ("eva", "eva(form='mean')", "eva(form='released')")
LANDMARKS = ("nystrom", "wildcat", "window(5):wildcat")
GUARD = (
    "nystrom(guard='cells')", "window(5):nystrom(guard='cells')", "sinks(2):window(5):nystrom(guard='cells')",
    "top(3):wildcat(guard='cells')",
)  # fmt: skip
LARA, HYPER, KDE, THIN = ("lara",), ("hyperattention",), ("kdeformer",), ("thinformer",)

#: Of what, in which function, which text, by which other.
Fault = tuple[str, Callable, str, str]
FAULTS: dict[tuple[str, ...], list[Fault]] = {
    NYSTROMFORMER: [
        ("one step fewer", nystromformer.Nystromformer._inverse, "range(self.steps)", "range(self.steps - 1)"),
        ("14 for 15", nystromformer.Nystromformer._inverse, "(15 * identity", "(14 * identity"),
        ("6 for 7", nystromformer.Nystromformer._inverse, "(7 * identity", "(6 * identity"),
        ("half for a quarter", nystromformer.Nystromformer._inverse, "0.25 * found", "0.5 * found"),
        ("largest row for column", nystromformer.Nystromformer._inverse,
         "xp.sum(matrix, axis=-2, keepdims=True), axis=-1", "xp.sum(matrix, axis=-1, keepdims=True), axis=-2"),
        ("start not transposed", nystromformer.Nystromformer._inverse, "xp.matrix_transpose(matrix) /", "matrix /"),
        ("pseudo-inverse of a lower rank", nystromformer.Nystromformer._inverse,
         "m * float(xp.finfo(matrix.dtype).eps)", "0.1"),
        ("means of keys for those of queries", nystromformer.Nystromformer.estimates,
         "segment_means(query, size), segment", "segment_means(key, size), segment"),
        ("middle transposed", nystromformer.Nystromformer.estimates, "_softmax(of_queries, of_keys)",
         "_softmax(of_keys, of_queries)"),
        ("values through keys", nystromformer.Nystromformer.estimates, "_softmax_mean(of_queries, key, value)",
         "_softmax_mean(of_keys, key, value)"),
        ("queries through queries", nystromformer.Nystromformer.estimates, "_softmax_mean(query, of_keys, summary)",
         "_softmax_mean(query, of_queries, summary)"),
        ("row sums of 1", nystromformer.Nystromformer.estimates, "found[..., -1:])", "0 * found[..., -1:] + 1)"),
        ("not exact at full size", nystromformer.Nystromformer.estimates, "size == key.shape[-2]", "size < 0"),
        ("weights not normalised", nystromformer._softmax, "weights / xp.sum(weights, axis=-1, keepdims=True)",
         "weights"),
        ("sums for means", segments.segment_means, "xp.mean(xp.reshape", "xp.sum(xp.reshape"),
        ("half the cost of a step", nystromformer.Nystromformer.multiplications, "4.0 * self.steps",
         "2.0 * self.steps"),
    ],
    MONARCH: [
        ("root rounded down", monarch.blocks_of, "math.isqrt(length - 1) + 1", "math.isqrt(length)"),
        ("no first mean", monarch.monarch_factors, "mean_query = queries  #", "mean_query = 0 * queries  #"),
        ("no entropy", monarch.monarch_factors, "entropy = -xp.sum(", "entropy = -0 * xp.sum("),
        ("entropy minus", monarch.monarch_factors, "entropy = -xp.sum(", "entropy = xp.sum("),
        ("blocks normalised over queries", monarch.monarch_factors, "log_left = _log_softmax(logits, -1)",
         "log_left = _log_softmax(logits, -2)"),
        ("absent keys have weight", monarch.monarch_factors, "xp.where(no_key[:, None, :], minus, logits)", "logits"),
        ("absent queries have weight", monarch.monarch_factors,
         "xp.where(xp.matrix_transpose(no_query)[..., None], minus, log_left)", "log_left"),
        ("means normalised over blocks of keys", monarch.monarch_factors, "log_left), -2)", "log_left), -1)"),
        ("queries of other blocks", monarch.monarch_factors, "by_place @ xp.matrix_transpose(mean_key)",
         "by_place[..., ::-1, :] @ xp.matrix_transpose(mean_key)"),
        ("one step only", monarch.monarch_factors, "range(steps)", "range(1)"),
        ("values backwards in their block", monarch.Monarch.estimates, "Blocks.of(value, count).rows",
         "Blocks.of(value, count).rows[..., ::-1, :]"),
        ("padding unfolded", monarch.Blocks.of, "np.flatnonzero(~absent)", "np.arange(rows.shape[-2])"),
        ("absent place of the next block", monarch.Blocks.of, "np.minimum(index, bounds[1:, None] - 1)",
         "np.minimum(index, rows.shape[-2] - 1)"),
        ("longer segments first", segments.segment_bounds, "[size, size + 1], [count - longer, longer]",
         "[size + 1, size], [longer, count - longer]"),
        ("half the cost of a step", monarch.Monarch.multiplications, "self.steps * 2 *", "self.steps *"),
    ],
    EVA: [
        ("shares without norms", eva.Chunks.of, "logits - parts.rows(half_squared_norm(tokens.key))[..., 0]", "logits"),
        ("no count", eva.Chunks.of, "xp.log(lengths) if counted else 0.0 * lengths", "0.0 * lengths"),
        ("count as released has none", eva.Chunks.of, "xp.log(lengths) if counted else 0.0 * lengths",
         "xp.log(lengths)"),
        ("a block of one key fewer", eva.Eva.block, "return min(round(self.window * size), size - 1)",
         "return max(0, min(round(self.window * size), size - 1) - 1)"),
        ("edges rounded up", eva.Eva._edges, "np.arange(count + 1) * tokens.length // count",
         "-(-np.arange(count + 1) * tokens.length // count)"),
        ("proposal without queries", eva.Eva.summaries, "proposal = proposal + self._query_means(queries, edges)",
         "pass"),
        ("whole proposal as released halves it", eva.Eva.summaries, "0.5 if self.form", "1.0 if self.form"),
        ("too much noise", eva.Eva.summaries, "self._noise(tokens, size, own)", "2.0 * self._noise(tokens, size, own)"),
        ("no mean where nothing is asked", eva.Eva._query_means,
         "xp.where(beside(number > 0, asked), means, every)", "means"),
        ("queries of the chunk before", eva.Eva._query_means, 'side="right") - 1', 'side="left") - 1'),
        ("block counted twice", eva.EvaSummary.sums, "self.chunks if self.twice or", "self.chunks if True or"),
        ("block without its first key", eva.EvaSummary.sums, "max(0, int(block) * self.w)",
         "max(0, int(block) * self.w + 1)"),
        ("a chunk lost after the block", eva.EvaSummary._outside, "slice(last, None)", "slice(last + 1, None)"),
        ("rest of a chunk with the weight of all", eva.EvaSummary._rest, " + peak + xp.log(total)", ""),
        ("kernel without shares", eva.EvaSummary.kernel, " + self.chunks.log_share[..., None, keys]", ""),
        ("causal: noise of the first chunks", eva.StreamingChunks._between, "first : first + len(own) - 1",
         ": len(own) - 1"),
        ("causal: no later chunk before it is complete", eva.StreamingChunks.extend, "if stop > self.edges[done]",
         "if stop > self.edges[done] and done == 0"),
        ("causal: a shorter window", eva.Eva.recent, "return self.block(size)", "return 1"),
        ("means of the longest chunk", eva.chunk_means, "1.0 / np.diff(edges)[:, None]",
         "1.0 / parts.padding.shape[-1]"),
        ("cost of chunks only", eva.Eva.multiplications, "shape.n * size *", "shape.n * chunks *"),
    ],
    LANDMARKS: [
        ("keys drawn with repetition", nystrom.Nystrom.landmarks, "rng.permutation(len(key))[:size]",
         "rng.integers(0, len(key), size)"),
        ("other keys", nystrom.Nystrom.landmarks, "chosen=order[landmarks.chosen]", "chosen=landmarks.chosen"),
        ("pivots without norms", nystrom.WildCat.landmarks, "norms + np.log(residual)", "np.log(residual)"),
        ("pivots with half the norms", nystrom.WildCat.landmarks, "norms + np.log(residual)",
         "0.5 * norms + np.log(residual)"),
        ("largest pivot, no draw", nystrom.WildCat.landmarks, " + rng.gumbel(size=len(residual))", ""),
        ("pivots by norms only", nystrom.WildCat.landmarks, "norms + np.log(residual)",
         "norms + np.log(residual > 0)"),
        ("columns not reduced", landmarks.pivoted_cholesky, " - rows[:done, pivot] @ rows[:done]", ""),
        ("residual not squared", landmarks.pivoted_cholesky, "rows[done] ** 2", "rows[done]"),
        ("pivot not its root", landmarks.pivoted_cholesky, "column / np.sqrt(residual[pivot])",
         "column / residual[pivot]"),
        ("landmarks left out of smaller sizes", landmarks.landmark_summaries,
         "summary[:r] + factor[r:, :r].T @ own[r:]", "summary[:r]"),
        ("landmarks counted twice", landmarks.landmark_summaries, "own, weighted[chosen] = weighted[chosen], 0.0",
         "own = weighted[chosen]"),
        ("own values lost", landmarks.landmark_summaries, "coefficients += right[chosen[:r]]", "pass"),
        ("norms of landmarks lost", landmarks.landmark_summaries, "- half_norms[chosen[:r]], 700.0", ", 700.0"),
        ("factor not transposed", landmarks.landmark_summaries,
         "scipy.linalg.solve_triangular(factor[:r, :r].T, others)",
         "scipy.linalg.solve_triangular(factor[:r, :r], others, lower=True)"),
        ("kernel without norms of landmarks", landmarks.LandmarkSummary.kernel,
         " - half_squared_norm(points)[:, 0]", ""),
        ("kernel of the first keys", landmarks.LandmarkSummary.kernel, "key, points = self.tokens.key[keys]",
         "key, points = self.tokens.key[: keys.stop - keys.start]"),
        ("cost of queries only", nystrom.ThroughLandmarks.multiplications, "(shape.n + shape.l) * size *",
         "shape.n * size / 4 *"),
    ],
    GUARD: [
        ("no upper limit", guarded.GuardedSummary._trusted, " & (above <= np.log(ABOVE_BOUND))", ""),
        ("a wider limit", guarded.GuardedSummary._trusted, "np.log(ABOVE_BOUND)", "np.log(3.0)"),
        ("no lower limit", guarded.GuardedSummary._trusted, "(above >= -1e-6)", "(above >= -1e6)"),
        ("outputs anywhere", guarded.GuardedSummary._trusted, "return inside & ", "return "),
        ("outputs inside on one axis", guarded.GuardedSummary._trusted, "np.all((output", "np.any((output"),
        ("peaks forgotten", guarded.GuardedSummary._trusted, " + free.log_peak", ""),
        ("peak of the bound forgotten", guarded.GuardedSummary._trusted, " - bound.log_peak", ""),
        ("never trusted", guarded.GuardedSummary.sums, "np.where(trusted, a, b)", "b"),
        ("always trusted", guarded.GuardedSummary.sums, "np.where(trusted, a, b)", "a"),
        ("the other way round", guarded.GuardedSummary.sums, "np.where(trusted, a, b)", "np.where(trusted, b, a)"),
        ("kernel always of landmarks", guarded.GuardedSummary.kernel,
         "np.where(trusted, free.log_scale, bound.log_scale)", "free.log_scale"),
        ("a guard inside of prefixes", guarded.with_exact, "isinstance(inner, GuardedSummary)", "inner is None"),
        ("bound without exact keys", guarded.with_exact, "exact(inner.bound)", "inner.bound"),
        ("range of some values", guarded.GuardedSummary.of, "np.max(value, axis=0)", "np.median(value, axis=0)"),
        ("cells of another landmark", nystrom._guarded, "cells_of(key, value, labels, count), labels",
         "cells_of(key, value, labels, count), labels[::-1]"),
        ("exact keys of both, paid once", prefixes.Top.multiplications, "self.alternatives * ", ""),
    ],
    LARA: [
        ("means subtracted", lara.Lara.summaries, "segment_means(queries.query, size) + ",
         "segment_means(queries.query, size) - "),
        ("means of keys only", lara.Lara.summaries, "segment_means(queries.query, size) + ", ""),
        ("half the noise", lara.Lara.summaries, "mean + noise", "mean + 0.5 * noise"),
        ("uniform noise", lara.Lara.summaries, "rng.normal(", "rng.uniform("),
        ("noise of the last rows", lara.Lara.summaries, "noise[..., :size, :]", "noise[..., sizes[-1] - size :, :]"),
        ("sums without density", lara.LaraSummary.sums, " - self.log_density", ""),
        ("sums without peaks", lara.LaraSummary.sums, " + xp.matrix_transpose(self.state.log_peak)", ""),
        ("density of means at rows", lara.LaraSummary.of, "_log_feature(mean, omega)", "_log_feature(omega, mean)"),
        ("density over rows", lara.LaraSummary.of, "xp.exp(logs - peak), axis=-2", "xp.exp(logs - peak), axis=-1"),
        ("density without its peak", lara.LaraSummary.of, "keepdims=True)) + peak", "keepdims=True))"),
        ("features without norms", lara._log_feature, " - half_squared_norm(x)", ""),
        ("kernel without density", lara.LaraSummary.kernel, " - self.log_density", ""),
        ("kernel without the peak of keys", lara.LaraSummary.kernel, "peak_x + xp.matrix_transpose(peak_y)", "peak_x"),
        ("kernel of the first keys", lara.LaraSummary.kernel, "[..., keys, :]", "[..., : keys.stop - keys.start, :]"),
        ("cost of queries only", lara.Lara.multiplications, "(shape.n + shape.l) * size", "shape.n * size"),
    ],
    HYPER: [
        ("signs turned", hashed.angular_hash, "x @ directions > 0", "x @ directions < 0"),
        ("buckets not in the order of the code", hashed.angular_hash, "xp.cumulative_sum(bits, axis=-1) % 2", "bits"),
        ("last sign first", hashed.angular_hash, "np.arange(bits.shape[-1] - 1, -1, -1)", "np.arange(bits.shape[-1])"),
        ("the other share", hashed.Hashed.exact_keys, "self.block * size", "(1 - self.block) * size"),
        ("fewer blocks", hashed.Hashed.estimates, "-(-tokens.length // self.exact_keys(size))",
         "tokens.length // self.exact_keys(size)"),
        ("queries sorted as keys", hashed.Hashed.estimates, "for x in (query, tokens.key)",
         "for x in (tokens.key,) * 2"),
        ("samples in the block, too", hashed._answered, "xp.where(inside, xp.full_like(far, -xp.inf), far)", "far"),
        ("samples without weights", hashed._answered, "far = far + sample.log_weight[..., None, None, :]", "pass"),
        ("no samples", hashed._answered,
         " + Features(None, far).relative_to(peak) @ with_ones(drawn.value)[..., None, :, :]", ""),
        ("padding attended", hashed._answered,
         "xp.where(beside(columns.padding[some, None, :], near), xp.full_like(near, -xp.inf), near)", "near"),
        ("peak of the block only", hashed._answered,
         "peak = xp.maximum(peak, xp.max(far, axis=-1, keepdims=True))", "pass"),
        ("blocks of keys as if all as long", hashed._answered,
         "np.repeat(np.arange(blocks), np.sum(~columns.padding, axis=-1))",
         "np.arange(tokens.length) * blocks // tokens.length"),
        ("order not undone", hashed._in_order, "xp.argsort(order, axis=-1)[..., None]", "order[..., None]"),
        ("the first keys as a sample", hyperattention.HyperAttention.sampled,
         "streams.draw(lambda rng: rng.permutation(tokens.length))", "__import__('numpy').arange(tokens.length)"),
        ("weight 1, as released", hyperattention.HyperAttention.sampled,
         "math.log(tokens.length / max(count, 1))", "0.0"),
        ("weight of one draw", hyperattention.HyperAttention.sampled, "tokens.length / max(count, 1)", "tokens.length"),
        ("cost of blocks only", hashed.Hashed.multiplications, " + size - exact)", ")"),
    ],
    KDE: [
        ("shares without 1 / l", kdeformer.sampling_shares, " + 1.0 / value.shape[-2]", ""),
        ("shares without the norm of V", kdeformer.sampling_shares, "norms / largest", "norms"),
        ("squared lengths", kdeformer.sampling_shares, "norms = xp.sqrt(xp.vecdot(value, value))",
         "norms = xp.vecdot(value, value)"),
        ("squared norm, as released", kdeformer.sampling_shares, "largest = xp.sqrt(xp.max(", "largest = (xp.max("),
        ("Frobenius norm", kdeformer.sampling_shares, "xp.max(xp.linalg.eigvalsh(", "xp.sum(xp.linalg.eigvalsh("),
        ("smallest singular value", kdeformer.sampling_shares, "xp.max(xp.linalg.eigvalsh(",
         "xp.min(xp.linalg.eigvalsh("),
        ("shares that do not sum to 1", kdeformer.sampling_shares, "shares / xp.sum(shares, axis=-1, keepdims=True)",
         "shares"),
        ("weight without the number of draws", kdeformer.KDEformer.sampled, "max(count, 1) * xp", "1.0 * xp"),
        ("weight in proportion", kdeformer.KDEformer.sampled, "-xp.log(max", "xp.log(max"),
        ("the next key", kdeformer.KDEformer.sampled, "xp.sum(xp.astype(below, xp.int64), axis=-1)",
         "xp.sum(xp.astype(below, xp.int64), axis=-1) + 1"),
        ("uneven draws", kdeformer.KDEformer.sampled, "rng.random(counts[-1])", "rng.random(counts[-1]) ** 2"),
        ("one draw", kdeformer.KDEformer.sampled, "index[..., :count]", "index[..., : min(count, 1)]"),
        ("the first key only", kdeformer.KDEformer.sampled, "< uniforms[..., :, None]",
         "< 0.0 * uniforms[..., :, None]"),
    ],
    THIN: [
        ("twice as many buckets a round", thinformer.rounds_of, "4**i", "2**i"),
        ("odd buckets", thinformer.rounds_of, "total % (2 * buckets)", "total % buckets"),
        ("a round fewer", thinformer.rounds_of, "bit_length() - 1", "bit_length() - 2"),
        ("the first keys", thinformer.Thinformer.kept, " * length // (size << len(rounds))", ""),
        ("bound not squared", thinformer.Thinformer.kept, "[..., None, :, :] ** 2", "[..., None, :, :]"),
        ("kernel without a bound", thinformer._kernel, " + bound)", ")"),
        ("kernel of keys only", thinformer._kernel, " * (value @ xp.matrix_transpose(value) + bound)", ""),
        ("no balance", thinformer.halved, "> 0.5 + 0.5 * lean", "> 0.5"),
        ("wrong way", thinformer.halved, "> 0.5 + 0.5 * lean", "> 0.5 - 0.5 * lean"),
        ("twice the balance", thinformer.halved, "> 0.5 + 0.5 * lean", "> 0.5 + lean"),
        ("largest not kept", thinformer.halved, "xp.maximum(largest, norms[..., i])", "norms[..., i]"),
        ("sum of the others", thinformer.halved, "(2 * xp.astype(first, inner.dtype) - 1)",
         "(1 - 2 * xp.astype(first, inner.dtype))"),
        ("differences of one side", thinformer.halved, "inner[..., ::2, :] - inner[..., 1::2, :]",
         "inner[..., ::2, :]"),
        ("delta of all buckets", thinformer.Thinformer.kept, "* len(rounds) * buckets / self.delta", "/ self.delta"),
        ("never reversed", thinformer.Thinformer.kept, "first != (flips[..., of_buckets, None] < 0.5)", "first"),
        ("the other of each pair", thinformer.Thinformer.kept, "index[..., ::2], index[..., 1::2]",
         "index[..., 1::2], index[..., ::2]"),
        ("flips for choices", thinformer.Thinformer.summaries, "uniforms[..., 0, :], uniforms[..., 1, :]",
         "uniforms[..., 1, :], uniforms[..., 0, :]"),
        ("cost of halving only", thinformer.Thinformer.multiplications, "(pairs + shape.n * size)", "pairs"),
    ],
}  # fmt: skip
MUTANTS = {f"{subjects[0]}: {fault[0]}": (subjects, fault) for subjects, every in FAULTS.items() for fault in every}


def test_every_method_has_at_least_ten_mutants():
    assert min(map(len, FAULTS.values())) >= 10 and len(MUTANTS) == sum(map(len, FAULTS.values()))


@pytest.mark.slow
@pytest.mark.parametrize("subject", sorted({subject for subjects in FAULTS for subject in subjects}))
def test_what_is_right_is_not_refuted(subject):
    with np.errstate(all="ignore"):
        assert not is_refuted(subject)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_refuted(name, monkeypatch):
    subjects, (_, function, old, new) = MUTANTS[name]
    with np.errstate(all="ignore"):
        mutate(monkeypatch, function, old, new)
        assert any(is_refuted(subject) for subject in subjects)
