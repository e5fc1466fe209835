"""What one wrong line in clusters, multipole, sampled keys or prefixes does: verify refutes each of these mutants.

Named by what is broken; the catcher must hold before and fail after. A mutant that cannot be run is caught, too.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from favorbench.methods import cells, clusters, multipole, partly_exact, prefixes, sampled, summaries
from favorbench.registry import label
from favorbench.studies.verify import methods
from tests import definitions
from tests.test_mutations import mutate, refuted

#: What verify is asked about.
CL = ("clusters", "clusters(order=2)", "clusters(lloyd=2)", "window(5):clusters")
MP = ("multipole", "window(5):multipole")
SK = ("sampled-keys", "sampled-keys(weights='values')", "window(5):sampled-keys")
PF = (
    "sinks(2):clusters", "window(5):sampled-keys", "top(2):sampled-keys", "sinks(2):window(5):clusters",
    "sinks(2):window(5):positive",
)  # fmt: skip


class Mutant(NamedTuple):
    function: Callable
    old: str
    new: str
    subjects: tuple[str, ...]


MUTANTS: dict[str, Mutant] = {
    "clusters: no count": Mutant(
        clusters.CellSummary.sums,
        " + self.cells.log_count[..., None, :]",
        "",
        CL,
    ),
    "clusters: half variance whole": Mutant(
        clusters.CellSummary.log_kernel,
        "0.5 * query * query",
        "query * query",
        CL,
    ),
    "clusters: variance minus": Mutant(
        clusters.CellSummary.log_kernel,
        "logits + (0.5",
        "logits - (0.5",
        CL,
    ),
    "clusters: kernel of another cell": Mutant(
        clusters.CellSummary.kernel,
        "self.labels[..., None, keys]",
        "(self.labels[..., None, keys] + 1) % self.cells.key.shape[-2]",
        CL,
    ),
    "clusters: kernel of shifted keys": Mutant(
        clusters.CellSummary.kernel,
        "self.labels[..., None, keys]",
        "self.labels[..., None, : keys.stop - keys.start]",
        CL,
    ),
    "cells: offsets doubled": Mutant(
        cells.nearest_centres,
        "scores = key[..., rows, :] @ columns - offsets",
        "scores = key[..., rows, :] @ columns - 2 * offsets",
        CL,
    ),
    "cells: no offsets": Mutant(
        cells.nearest_centres,
        "@ columns - offsets",
        "@ columns",
        CL,
    ),
    "cells: farthest": Mutant(
        cells.nearest_centres,
        "argmax(scores[..., :size]",
        "argmin(scores[..., :size]",
        CL,
    ),
    "cells: all centres of the largest size": Mutant(
        cells.nearest_centres,
        "scores[..., :size]",
        "scores[..., :max(1, size - 1)]",
        CL,
    ),
    "cells: variance not central": Mutant(
        cells.means_of,
        "squares / some - key * key",
        "squares / some",
        CL,
    ),
    "cells: values not divided": Mutant(
        cells.means_of,
        "sums[..., d : d + d_v] / some",
        "sums[..., d : d + d_v]",
        CL,
    ),
    "cells: empty counts one": Mutant(
        cells.means_of,
        "xp.full_like(some, -xp.inf)",
        "0 * some",
        CL,
    ),
    "clusters: lloyd one less": Mutant(
        clusters.Centred.settled,
        "range(self.lloyd)",
        "range(self.lloyd - 1)",
        CL,
    ),
    "clusters: starts not random": Mutant(
        clusters.Centred.starts,
        "rng.permutation(tokens.length)[:size]",
        "np.arange(tokens.length)[:size]",
        CL,
    ),
    "clusters: centres twice": Mutant(
        clusters.Centred.starts,
        "rng.permutation(tokens.length)[:size]",
        "rng.integers(0, tokens.length, size)",
        CL,
    ),
    "causal clusters: starts from the future": Mutant(
        clusters.StreamingCells._labels,
        "among = xp.reshape(self.order[self.order < count], (*self.order.shape[:-1], count))[..., : self.size]",
        "among = self.order[..., : self.size]",
        CL,
    ),
    "causal clusters: never remade": Mutant(
        clusters.StreamingCells.extend,
        "stop >= 2 * self.made_at",
        "self.made_at == 0",
        CL,
    ),
    "causal clusters: sums not grown": Mutant(
        clusters.StreamingCells.extend,
        "self.sums = self.sums + segment_sums",
        "self.sums = segment_sums",
        CL,
    ),
    "causal clusters: labels forgotten": Mutant(
        clusters.StreamingCells.extend,
        "[self.labels, labels]",
        "[labels, self.labels]",
        ("multipole",),
    ),
    "causal clusters: known one late": Mutant(
        clusters.StreamingCells.extend,
        "self.known = stop",
        "self.known = stop - 1",
        CL,
    ),
    "multipole: far field keeps near cells": Mutant(
        multipole.MultipoleSummary.sums,
        "xp.where(near, xp.full_like(weights, -xp.inf), weights)",
        "weights",
        MP,
    ),
    "multipole: no count": Mutant(
        multipole.MultipoleSummary.sums,
        "logits + self.far.cells.log_count",
        "logits + 0 * self.far.cells.log_count",
        MP,
    ),
    "multipole: peak not used": Mutant(
        multipole.MultipoleSummary._products,
        "@ columns[:, keys] - peak[rows, :]",
        "@ columns[:, keys]",
        MP,
    ),
    "multipole: peak not raised": Mutant(
        multipole.MultipoleSummary._raised,
        "raised[where, :] = xp.maximum(raised[where, :], xp.max(logits, axis=-1, keepdims=True))",
        "pass",
        MP,
    ),
    "multipole: total not rescaled": Mutant(
        multipole.MultipoleSummary._with_near,
        "total * xp.exp(peak - higher)",
        "total",
        MP,
    ),
    "multipole: never raises": Mutant(
        multipole.MultipoleSummary._with_near,
        "if not bool(",
        "if False and bool(",
        MP,
    ),
    "multipole: last key of cell lost": Mutant(
        multipole.MultipoleSummary._with_near,
        "slice(*of_key)",
        "slice(of_key[0], of_key[1] - 1)",
        MP,
    ),
    "multipole: next queries": Mutant(
        multipole.MultipoleSummary._with_near,
        "slice(*of_query)",
        "slice(of_query[0], of_query[1] - 1)",
        MP,
    ),
    "multipole: share one less": Mutant(
        multipole.Multipole.exact_keys,
        "min(round(self.exact * size), size - 1)",
        "max(0, min(round(self.exact * size), size - 1) - 1)",
        MP,
    ),
    "multipole: wrong share": Mutant(
        multipole.Multipole.exact_keys,
        "self.exact * size",
        "(1 - self.exact) ** 2 * size",
        MP,
    ),
    "multipole: not by spread": Mutant(
        multipole.MultipoleSummary._near,
        "logits + xp.log(spread)",
        "logits",
        MP,
    ),
    "multipole: smallest cells": Mutant(
        multipole.MultipoleSummary._near,
        "largest(logits + xp.log(spread), most)",
        "largest(-logits - xp.log(spread), most)",
        MP,
    ),
    "multipole: cells until full": Mutant(
        multipole.MultipoleSummary._near,
        "2 * keys_up_to - sizes < 2 * self.exact",
        "keys_up_to < self.exact",
        MP,
    ),
    "multipole: most without one": Mutant(
        multipole.MultipoleSummary._near,
        "// keys) + 1)",
        "// keys))",
        MP,
    ),
    "multipole: kernel exact flipped": Mutant(
        multipole.MultipoleSummary.kernel,
        "xp.where(near, exact,",
        "xp.where(~near, exact,",
        MP,
    ),
    "multipole: kernel of first keys": Mutant(
        multipole.MultipoleSummary.kernel,
        "self.tokens.key[keys, :]",
        "self.sorted.key[keys, :]",
        MP,
    ),
    "sampled keys: weight 1/m": Mutant(
        sampled.SampleSummary.uniform,
        "math.log(tokens.length / index.shape[-1])",
        "-math.log(index.shape[-1])",
        SK,
    ),
    "sampled keys: weight 1": Mutant(
        sampled.SampleSummary.uniform,
        "math.log(tokens.length / index.shape[-1])",
        "0.0",
        SK,
    ),
    "sampled keys: values weight without m": Mutant(
        sampled.SampledKeys.summaries,
        "-xp.log(size * xp",
        "-xp.log(1.0 * xp",
        SK,
    ),
    "sampled keys: values unweighted": Mutant(
        sampled.SampledKeys.summaries,
        "-xp.log(size * xp.take_along_axis(shares, drawn, axis=-1))",
        "0.0 * xp.take_along_axis(shares, drawn, axis=-1)",
        SK,
    ),
    "sampled keys: norms squared": Mutant(
        sampled.SampledKeys.summaries,
        "norms = xp.sqrt(xp.vecdot(tokens.value, tokens.value))",
        "norms = xp.vecdot(tokens.value, tokens.value)",
        SK,
    ),
    "sampled keys: index one off": Mutant(
        sampled.SampledKeys.summaries,
        "xp.sum(xp.astype(below, xp.int64), axis=-1)",
        "xp.sum(xp.astype(below, xp.int64), axis=-1) + 1",
        SK,
    ),
    "sampled keys: first keys": Mutant(
        sampled.SampledKeys.summaries,
        "streams.draw(lambda rng: rng.permutation(tokens.length))",
        "streams.draw(lambda rng: __import__('numpy').arange(tokens.length))",
        SK,
    ),
    "sampled keys: with replacement": Mutant(
        sampled.SampledKeys.summaries,
        "streams.draw(lambda rng: rng.permutation(tokens.length))",
        "streams.draw(lambda rng: rng.integers(0, tokens.length, tokens.length))",
        SK,
    ),
    "sampled keys: sums no weight": Mutant(
        sampled.SampleSummary.sums,
        " + self.log_weight[..., None, :]",
        "",
        SK,
    ),
    "sampled keys: kernel no weight": Mutant(
        sampled.SampleSummary.kernel,
        "drawn * xp.exp(self.log_weight)[..., None]",
        "drawn",
        SK,
    ),
    "sampled keys: kernel places off": Mutant(
        sampled.SampleSummary.kernel,
        "xp.arange(keys.start, keys.stop,",
        "xp.arange(keys.start + 1, keys.stop + 1,",
        SK,
    ),
    "sampled keys: kernel everywhere": Mutant(
        sampled.SampleSummary.kernel,
        "1.0)), -xp.inf)",
        "1.0)), 0.0)",
        SK,
    ),
    "causal sampled keys: future": Mutant(
        sampled.StreamingSample.extend,
        "self.order[self.order < stop], (*self.order.shape[:-1], stop))",
        "self.order, self.order.shape)",
        SK,
    ),
    "causal sampled keys: weight of all": Mutant(
        sampled.StreamingSample.extend,
        "SampleSummary.uniform(self.tokens.part(slice(0, stop)), among",
        "SampleSummary.uniform(self.tokens, among",
        SK,
    ),
    "causal sampled keys: last keys": Mutant(
        sampled.StreamingSample.extend,
        "among[..., : self.size]",
        "among[..., : self.size - 1]",
        SK,
    ),
    "prefixes: sinks also inside": Mutant(
        partly_exact.SinksSummary.sums,
        "slice(0, self.n))",
        "slice(0, self.n + 1))",
        PF,
    ),
    "prefixes: sinks one less": Mutant(
        partly_exact.SinksSummary.sums,
        "slice(0, self.n))",
        "slice(0, self.n - 1))",
        PF,
    ),
    "prefixes: rest from n+1": Mutant(
        prefixes.Sinks.summaries,
        "tokens.part(slice(self.n, None))",
        "tokens.part(slice(self.n + 1, None))",
        PF,
    ),
    "prefixes: sinks positions not moved": Mutant(
        partly_exact.moved,
        "queries.positions - by",
        "queries.positions",
        PF,
    ),
    "prefixes: sinks positions moved twice": Mutant(
        partly_exact.moved,
        "queries.positions - by",
        "queries.positions - 2 * by",
        PF,
    ),
    "prefixes: sinks kernel off": Mutant(
        partly_exact.SinksSummary.kernel,
        "slice(max(start, self.n) - self.n, stop - self.n)",
        "slice(max(start, self.n) - self.n + 1, stop - self.n + 1)",
        PF,
    ),
    "prefixes: window edge left": Mutant(
        partly_exact.WindowSummary._near,
        ">= -(self.w // 2)",
        "> -(self.w // 2)",
        PF,
    ),
    "prefixes: window edge right": Mutant(
        partly_exact.WindowSummary._near,
        "distance < (self.w + 1) // 2",
        "distance <= (self.w + 1) // 2",
        PF,
    ),
    "prefixes: window block one short": Mutant(
        partly_exact.WindowSummary.sums,
        "int(at[-1]) + (self.w + 1) // 2)",
        "int(at[-1]) + (self.w + 1) // 2 - 1)",
        PF,
    ),
    "prefixes: window block starts late": Mutant(
        partly_exact.WindowSummary.sums,
        "max(0, int(at[0]) - self.w // 2)",
        "max(0, int(at[0]) - self.w // 2 + 1)",
        PF,
    ),
    "prefixes: not corrected": Mutant(
        partly_exact.exact_instead,
        "-xp.ones_like(exact) if estimate.values is None else -estimate.values",
        "0 * exact",
        PF,
    ),
    "prefixes: corrected everywhere": Mutant(
        partly_exact.exact_instead,
        "xp.where(where, log + xp.zeros_like(exact), nothing)",
        "log + xp.zeros_like(exact)",
        PF,
    ),
    "prefixes: corrected plus": Mutant(
        partly_exact.exact_instead,
        "else -estimate.values",
        "else estimate.values",
        PF,
    ),
    "prefixes: top k-1": Mutant(
        partly_exact.TopSummary._top,
        "largest(logits, self.k)",
        "largest(logits, max(1, self.k - 1))",
        PF,
    ),
    "prefixes: top smallest": Mutant(
        partly_exact.TopSummary._top,
        "largest(logits, self.k)",
        "largest(-logits, self.k)",
        PF,
    ),
    "prefixes: top kernel shifted": Mutant(
        partly_exact.TopSummary.kernel,
        "[..., keys]",
        "[..., : keys.stop - keys.start]",
        PF,
    ),
    "prefixes: chosen estimate": Mutant(
        partly_exact.chosen,
        "xp.where(where, exact, estimate.log_scale + xp.zeros_like(exact))",
        "estimate.log_scale + xp.zeros_like(exact)",
        PF,
    ),
    "causal: past one key more": Mutant(
        summaries.KeySummaryMethod._causal,
        "chunk.start - max(0, self.recent(size) - 1)",
        "chunk.start + 1 - max(0, self.recent(size) - 1)",
        PF,
    ),
    "causal: past one key less": Mutant(
        summaries.KeySummaryMethod._causal,
        "chunk.start - max(0, self.recent(size) - 1)",
        "chunk.start - max(0, self.recent(size))",
        PF,
    ),
    "causal: past too far": Mutant(
        summaries.KeySummaryMethod._causal,
        "chunk.start - max(0, self.recent(size) - 1)",
        "chunk.start",
        PF,
    ),
    "causal: past skips the first twice": Mutant(
        summaries.KeySummaryMethod._causal,
        "state.extend(past - self.first)",
        "state.extend(past)",
        PF,
    ),
    "causal: present unmasked": Mutant(
        summaries.KeySummaryMethod._causal,
        "masked=True",
        "masked=False",
        PF,
    ),
    "causal: own keys lost": Mutant(
        summaries.KeySummaryMethod._causal,
        "slice(known, chunk.stop))",
        "slice(known, chunk.stop - 1))",
        PF,
    ),
    "causal: own keys late": Mutant(
        summaries.KeySummaryMethod._causal,
        "slice(known, chunk.stop))",
        "slice(chunk.start, chunk.stop))",
        PF,
    ),
    "causal: first keys lost": Mutant(
        summaries.KeySummaryMethod._causal,
        "slice(0, min(self.first, chunk.stop))",
        "slice(0, 0)",
        PF,
    ),
    "causal: past of another": Mutant(
        summaries.KeySummaryMethod._causal,
        "merge(sums, exact_sums",
        "merge(None, exact_sums",
        PF,
    ),
    "causal: rest not without the first": Mutant(
        summaries.KeySummaryMethod._causal,
        "tokens.part(slice(self.first, None))",
        "tokens",
        PF,
    ),
}


def is_refuted(subject: str) -> bool:
    """By its definition, or as verify judges; a claim that chance has no part in need not wait for the others."""
    method, measured = definitions.member(subject), []
    try:
        for question in questions(method):
            if not definitions.error(method, question, (1, 5, 16, 40)) <= 1:
                return True
        for one in methods.of_method(method, 0):
            if one.tests == 0 and refuted([one]):
                return True
            measured.append(one)
    except (IndexError, ValueError, ZeroDivisionError):
        return True
    return refuted(measured)


def questions(method):
    """Few keys and many, some of the queries, causal too, and logits of thousands."""
    found = [methods._question(0, scale) for scale in methods.SCALES] + [methods._question(0, 0.5, methods.LONG)]
    some = np.arange(16, 48, 2)
    if not method.oracle:
        found.append(found[0]._replace(query=found[0].query[some], positions=some))
    if method.causal_safe:
        found += [methods._question(0, scale, methods.LONG, causal=True) for scale in methods.SCALES]
    if not any(part in label(method) for part in ("order=2", "lara", "nystrom", "wildcat")):
        found.append(methods._question(0, 40.0))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("subject", sorted({*CL, *MP, *SK, *PF}))
def test_what_is_right_is_not_refuted(subject):
    with np.errstate(all="ignore"):
        assert not is_refuted(subject)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_refuted(name, monkeypatch):
    function, old, new, subjects = MUTANTS[name]
    with np.errstate(all="ignore"):
        mutate(monkeypatch, function, old, new)
        assert any(is_refuted(subject) for subject in subjects)
