"""Every method, baseline and prefix against its definition (``tests.definitions``), on easy and on hard inputs."""

import math
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax

import favorbench as fb
from favorbench.baselines import BASELINES
from favorbench.methods import METHODS, AttentionProblem
from favorbench.methods.landmarks import GuardedSummary
from favorbench.methods.shared_cells import SharedCells
from favorbench.methods.summaries import Queries, Tokens
from favorbench.numerics import logsum
from favorbench.numerics.logsum import quotient
from favorbench.numerics.streams import Streams
from tests.definitions import attention_of, error, inside, member

NAMES = [cls.name for cls in (*METHODS, *BASELINES)]
PARAMETERS = [
    "clusters(order=2)", "clusters(lloyd=2)", "clusters(order=2, lloyd=1)", "clusters(points='pivots')",
    "multipole(exact=0.25)", "multipole(exact=0.8)", "multipole(exact=0)", "multipole(exact=0.3, lloyd=1)",
    "multipole(block=8)", "multipole(block=128, exact=0.7)", "multipole(cells='tree')",
    "multipole(block=8, cells='tree', segment=60)", "multipole(block=64, lloyd=1, segment=100)",
    "sampled-keys(weights='values')", "nystromformer(inverse='pinv')", "nystromformer(steps=2)", "monarch(steps=3)",
    "eva(form='mean')", "eva(form='released')", "eva(window=0.0)", "eva(window=0.8)", "hyperattention(block=0.6)",
    "kdeformer(block=0.6, projections=3)", "nystrom(guard='cells')", "wildcat(guard='cells')",
    "block-sparse(block=3, group=8)", "block-sparse(block=7, group=1)", "vertical-slash(group=8, rows=3)",
    "vertical-slash(columns=0)", "vertical-slash(columns=0.8, group=16)", "xattention(block=4, group=8, stride=4)",
    "xattention(stride=2, group=16)", "spargeattn(similarity=0.2, group=8, block=3)", "spargeattn(similarity=-1)",
    "pbs-attn(group=8, rows=3, segment=16)", "pbs-attn(block=3, segment=9, rows=64)", "pisa(group=8, block=3)",
    "pisa(order=1)", "pisa(order=1, group=8, block=3)",
]  # fmt: skip
PREFIXED = [
    *(f"{prefix}:{method}" for prefix in ("sinks(3)", "window(7)", "window(8)", "top(3)")
      for method in ("clusters", "multipole", "sampled-keys", "positive", "trig", "centre:positive", "lara", "wildcat",
                     "nystrom(guard='cells')")),
    *(f"{prefix}:eva{form}" for prefix in ("sinks(3)", "window(11)") for form in ("", "(form='mean')")),
    "window(11):eva(form='released')", "sinks(2):thinformer", "window(5):thinformer", "sinks(4):window(60):eva",
    "sinks(2):window(5):nystrom(guard='cells')", "sinks(4):window(3):wildcat",
    "sinks(4):window(8):clusters", "window(8):sinks(4):clusters", "window(4):window(9):clusters(order=2)",
    "sinks(2):sinks(3):multipole", "top(2):window(5):sampled-keys", "sinks(4):top(3):trig", "window(1):trig",
    "window(5):sinks(3):trig",
    "sinks(3):window(7):multipole(block=8, cells='tree', segment=64)", "window(30):multipole(block=64, segment=50)",
    "sinks(2):multipole(block=5, cells='tree', segment=32)", "top(3):multipole(block=16, cells='tree')",
    "sinks(2):sampled-keys(weights='values')", "window(5):sampled-keys(weights='values')",
    "sinks(3):window(7):nothing", "window(9):nothing", "sinks(3):block-sparse(group=8)",
    "window(9):xattention(group=8)",
    "sinks(2):window(5):vertical-slash(group=8)", "sinks(3):pbs-attn(group=8, segment=12)", "top(3):spargeattn",
    "sinks(3):window(7):pisa(group=8)", "window(7):pisa(group=8, order=1)",
]  # fmt: skip
SPECS = [*NAMES, *PARAMETERS, *PREFIXED]
BY_BLOCKS = ("block-sparse", "slash", "xattention", "spargeattn", "pbs", "pisa")  # a choice among scores
CAUSAL = np.array([0, 1, 60, 126, 127, 128, 129, 200, 254, 255, 256, 257, 300, 383, 384, 399])


def problem(seed=0, n=40, length=40, d=5, norm=0.8, at=None, causal=False):
    """Scaled queries and keys with means; without ``at`` the same tokens, if there are as many."""
    rng = np.random.default_rng(seed)
    query, key = norm * rng.normal(size=(n, d)) + 0.3, norm * rng.normal(size=(length, d)) - 0.2
    positions = np.arange(n) if n == length else at
    return AttentionProblem(query, key, rng.normal(size=(length, 3)), positions, causal)


def answers(spec, question, sizes, seed=0):
    return list(member(spec).estimates(question, sizes, Streams.of(np.random.default_rng(seed))))


def without(*parts, specs=SPECS):
    return [spec for spec in specs if not any(part in spec for part in parts)]


def with_logits_to(question, largest):
    factor = math.sqrt(largest / np.max(np.abs(question.query @ question.key.T)))
    return question._replace(query=factor * question.query, key=factor * question.key)


@pytest.mark.parametrize("spec", SPECS)
def test_an_answer_is_its_definition(spec):
    """For several sizes at once, and at size 1."""
    assert error(member(spec), problem(), (3, 10, 24)) <= 1
    assert error(member(spec), problem(1), (1,)) <= 1


@pytest.mark.parametrize("spec", [spec for spec in SPECS if member(spec).random and member(spec).every_size])
def test_another_seed_or_size_is_far_outside_of_the_rounding(spec):
    """The control: the definitions tell wrong answers apart."""
    question, method = problem(), member(spec)
    (answer,) = answers(spec, question, (10,))
    for size, seed in ((5, 0), (10, 1)):
        wrong = attention_of(method, question, size, np.random.default_rng(seed)).matrix @ question.value
        assert np.max(np.abs(wrong - answer.output)) > 1e-6


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not member(spec).needs_positions])
def test_fewer_queries_than_keys_and_more(spec):
    for n, length in ((7, 33), (20, 9), (1, 8)):
        if n == 1 and member(spec).name in ("monarch", "nystromformer"):  # there is less than a query for each block
            assert np.all(np.isfinite(answers(spec, problem(1, n, length), (4,))[0].output))
        else:
            assert error(member(spec), problem(1, n, length), (4,)) <= 1


@pytest.mark.parametrize("spec", without("top(", "centre", "sinks"))
def test_one_key_is_all_there_is(spec):
    assert error(member(spec), problem(2, 1, 1), (1,)) <= 1


@pytest.mark.parametrize("spec", SPECS)
def test_values_of_one_number_and_the_same_twice(spec):
    given = problem(4, 40, 40)
    once = given._replace(value=given.value[:, :1])
    twice = once._replace(value=np.repeat(once.value, 2, axis=-1))
    (one,), (two,) = (answers(spec, question, (8,)) for question in (once, twice))
    assert_allclose(two.output, np.repeat(one.output, 2, axis=-1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "spec",
    [spec for spec in SPECS if member(spec).needs_positions and ("window" not in spec or member(spec).group == 1)],
)
def test_some_queries_of_a_sequence(spec):
    """Positions of any blocks, and windows around queries whose blocks are far apart."""
    at = np.array([0, 1, 5, 63, 64, 65, 130, 199])
    if spec.startswith("sinks") and "eva" in spec:
        at = at[2:]  # the queries of the first keys are in no block
    assert error(member(spec), problem(3, len(at), 200, at=at), (9,)) <= 1


#: Which of equal keys are chosen is not defined, nor the inverse of a singular matrix.
@pytest.mark.parametrize(
    "spec", without("multipole", "pivots", "top", "nystrom", "wildcat", "thin", "rank", *BY_BLOCKS)
)
def test_duplicates_leave_cells_empty(spec):
    question = problem(4, 30, 30)
    key = np.repeat(question.key[:6], 5, axis=0)
    assert error(member(spec), question._replace(key=key), (12,)) <= 1
    assert error(member(spec), question._replace(key=0.0 * key), (12,)) <= 1


@pytest.mark.parametrize("spec", ["multipole", "clusters(points='pivots')", "sinks(2):multipole", "top-keys"])
def test_the_choice_among_duplicates_does_not_matter(spec):
    """Keys that are all the same have one cell: an exact answer, the mean of values."""
    question = problem(4, 30, 30)
    question = question._replace(key=np.repeat(question.key[:1], 30, axis=0))
    (answer,) = answers(spec, question, (30,))
    assert_allclose(answer.output, np.mean(question.value, axis=0) + 0 * answer.output, atol=1e-14)


def test_cells_without_keys_are_never_near():
    """Their mean is 0, as if its logit were 0: beside it all logits that are far below 0 would vanish."""
    rng = np.random.default_rng(0)
    query, key = 30.0 + rng.normal(size=(30, 4)), -30.0 + rng.normal(size=(6, 4)).repeat(5, axis=0)
    question = AttentionProblem(query, key, rng.normal(size=(30, 3)), np.arange(30))
    for spec in ("multipole", "multipole(block=4)", "window(3):multipole", "clusters"):
        output = answers(spec, question, (24,))[0].output
        assert_allclose(output, answers("top-keys", question, (30,))[0].output, atol=1e-8)


#: Nor which of the keys are chosen whose weights are all 0.
WEIGHTLESS = ("slash", "xattention", "pbs")


@pytest.mark.parametrize(
    "spec", without("trig", "window(9):clusters(order=2)", "nystrom", "wildcat", "best", "taylor", *WEIGHTLESS)
)
def test_logits_of_hundreds(spec):
    """The remaining keys lose all digits in the difference of two estimates that are far too large."""
    for size in (4, 12):
        assert error(member(spec), with_logits_to(problem(5), 500), (size,)) <= 1


@pytest.mark.parametrize("spec", ["multipole(block=8)", "multipole(block=16, cells='tree')"])
def test_each_voter_of_a_block_counts_once_where_shares_underflow(spec):
    """One has nearly all its weight on one key, the next equal weights; a third of the keys has none of any."""
    question = problem(5, 64, 64)
    scale, away = np.where(np.arange(64) % 8 == 4, 1e-3, 4.0), -1000.0 * (np.arange(64) % 3 == 0)
    query = np.column_stack([np.ones(64), scale[:, None] * question.query])
    question = question._replace(query=query, key=np.column_stack([away, question.key]))
    assert error(member(spec), question, (12, 24)) <= 1


@pytest.mark.parametrize("spec", ["spargeattn(similarity=0.2, group=8, block=3)", "spargeattn(block=4)"])
def test_keys_that_are_nought_are_unlike_all_others(spec):
    question = problem(9)
    key = np.where(np.arange(40)[:, None] % 7 == 0, 0.0, question.key + 1.0)
    assert error(member(spec), question._replace(key=key), (6, 12)) <= 1


def test_segments_of_keys_that_are_sorted_are_whole_blocks_and_no_longer():
    assert error(member("pbs-attn(block=4, segment=6, group=8, rows=3)"), problem(3), (16, 24)) <= 1


def test_choices_of_thinformer_depend_on_the_share_of_a_bucket():
    """Keys are near to one another, so that differences of adjacent ones are alike."""
    for seed in range(12):
        assert error(member("thinformer(delta=1)"), problem(seed, 128, 128, norm=0.3), (8, 16)) <= 1


def test_only_queries_that_exist_vote_where_shares_underflow():
    """The last block has 2 of 8 queries, and a copy of the last one for the second voter."""
    for seed in (20, 21, 22):
        question = with_logits_to(problem(seed, 58, 64), 3000)
        assert error(member("multipole(block=8)"), question, (12,)) <= 1


def test_votes_count_where_exact_keys_have_nearly_all_the_weight():
    """Their logits are above those of all centroids by more than exp takes, but not above those of keys in cells."""
    for seed in (3, 4, 5):
        question = with_logits_to(problem(seed, 300, 300, causal=True), 6000)
        assert error(member("multipole(block=16, segment=64)"), question, (20,)) <= 1


@pytest.mark.parametrize("spec", SPECS)
def test_values_that_are_nought_give_nought(spec):
    """And not a number that is none: whatever the weights are, nothing is divided by a value."""
    for size in (4, 12):
        question = problem(7)
        (answer,) = answers(spec, question._replace(value=0.0 * question.value), (size,))
        assert_array_equal(answer.output, np.zeros((40, 3)))


@pytest.mark.parametrize("spec", [spec for spec in without("values", "best") if member(spec).arrays != "host"])
def test_float32(spec):
    """The answer has the precision of its inputs, and is the one of float64 to its rounding."""
    question = problem(6)
    question = question._replace(**{name: getattr(question, name).astype(np.float32) for name in question._fields[:3]})
    assert error(member(spec), question, (9,)) <= 1
    assert answers(spec, question, (9,))[0].output.dtype == np.float32


@pytest.mark.parametrize("spec", SPECS)
def test_an_answer_is_linear_in_the_unit_of_the_values(spec):
    """Also where keys are chosen by the norms of their values: only ratios of these count."""
    query, key, value = np.random.default_rng(0).normal(size=(3, 64, 8))
    for unit in (2.0**-20, 2.0**20):
        plain, scaled = (fb.method_attention(query, key, scale * value, member(spec), size=16) for scale in (1.0, unit))
        assert_allclose(scaled, unit * plain, rtol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_an_answer_does_not_depend_on_how_many_queries_are_computed_at_once(spec, causal, monkeypatch):
    """More heads leave memory for fewer. `xattention` scored the last ones in other tiles then."""
    question = problem(3, 150, 150, causal=causal and member(spec).causal_safe)
    (whole,) = answers(spec, question, (40,))
    monkeypatch.setattr(logsum, "tile_elements", lambda like: 4000)
    (parts,) = answers(spec, question, (40,))
    assert_allclose(parts.output, whole.output, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spec", [method.name for method in METHODS if method.arrays == "host"])
def test_methods_on_the_host_compute_in_float64(spec):
    """As in a sweep: their products overflow float32 where logits are above 88."""
    rng = np.random.default_rng(0)
    arrays = [scale * rng.normal(size=(64, 32)).astype(np.float32) for scale in (8, 8, 1)]
    output, exact = (fb.method_attention(*(a.astype(t) for a in arrays), spec, size=8) for t in (np.float32, float))
    assert np.isfinite(output).all() and np.array_equal(output, exact)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if member(spec).causal_safe])
def test_causal_answers_are_their_definitions(spec):
    """At some positions of 400 keys, for sizes below a chunk and above the first ones; 400 is no multiple of 128."""
    method = member(spec)
    compared = (6, 20) if hasattr(inside(method), "map") else (6, 150)
    question = problem(7, len(CAUSAL), 400, at=CAUSAL, causal=True, norm=0.6)
    assert error(method, question, (6, 20, 150), compared=compared) <= 1


@pytest.mark.parametrize(
    "spec", ["sinks(130):clusters", "sinks(200):window(90):clusters", "window(250):clusters", "window(300):eva"]
)
def test_sinks_and_windows_longer_than_a_chunk(spec):
    assert error(member(spec), problem(10, len(CAUSAL), 400, at=CAUSAL, causal=True), (9,)) <= 1


def test_a_causal_window_attends_its_chunk_too_and_says_so():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 384, 8))
    weights = fb.method_attention(query, key, np.eye(384), "sinks(4):window(64):nothing", size=1, causal=True)
    assert (weights > 0).sum(axis=1)[128:].tolist() == [*range(68, 196)] * 2  # 4 + 64, to the end of a chunk 127 more
    assert "(causal: and its chunk of 128)" in fb.get_method("window(64):nothing").description


@pytest.mark.parametrize("spec", ["clusters", "sampled-keys", "sinks(3):clusters(order=2)", "window(9):positive"])
def test_causal_logits_of_hundreds_and_duplicates(spec):
    question = problem(11, len(CAUSAL), 400, at=CAUSAL, causal=True)
    assert error(member(spec), with_logits_to(question, 500), (9,)) <= 1
    key = question.key.copy()
    key[::2], key[1::4] = key[0], 0.0
    assert error(member(spec), question._replace(key=key), (9,)) <= 1


@pytest.mark.parametrize(
    "spec", ["window(5):sampled-keys", "sinks(9):window(4):clusters", "top(2):sampled-keys", "window(5):nothing"]
)
def test_logits_that_are_all_far_below_zero(spec):
    """exp of them underflows, and most windows hold no sampled key: nothing may be lost beside a peak of 0."""
    for dtype, shift in ((np.float64, 60.0), (np.float32, 12.0)):
        question = problem(13)
        query, key = (question.query + shift / math.sqrt(5), question.key - shift / math.sqrt(5))
        assert np.max(query @ key.T) < (-2000 if shift > 20 else -80)
        arrays = (part.astype(dtype) for part in (query, key, question.value))
        assert error(member(spec), AttentionProblem(*arrays, question.positions), (6,)) <= 1


@pytest.mark.parametrize("spec", [spec for spec in SPECS if member(spec).every_size])
@pytest.mark.parametrize("causal", [False, True])
def test_an_answer_does_not_depend_on_the_other_sizes(spec, causal):
    if causal and not member(spec).causal_safe:
        return
    question = problem(12, 140, 140, causal=causal)
    tolerance = 1e-6 if any(part in spec for part in ("nystrom", "wildcat", "best", "trig")) else 1e-12
    for answer, size in zip(answers(spec, question, (4, 9, 20)), (4, 9, 20), strict=True):
        (alone,) = answers(spec, question, (size,))
        assert_allclose(answer.output, alone.output, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "spec", ["clusters", "multipole", "sinks(4):window(8):clusters", "window(300):sampled-keys", "eva"]
)
def test_causal_answers_do_not_depend_on_which_queries_ask(spec):
    question = problem(8, 300, 300, causal=True)
    (every,) = answers(spec, question, (20,))
    for at in (np.array([5]), np.array([130, 131]), np.arange(250, 300), np.array([0, 299])):
        (answer,) = answers(spec, question._replace(query=question.query[at], positions=at), (20,))
        assert_allclose(answer.output, every.output[at], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("cells", ["random", "tree"])
def test_the_near_cells_of_a_block_do_not_depend_on_the_queries_that_are_taken_together(cells):
    """Queries that drift, so that blocks differ: an answer with other blocks is another one."""
    question, wholes = problem(14, 96, 96, norm=0.5), {}
    query = question.query + np.linspace(-4, 4, 96)[:, None]
    for block in (48, 32):
        tokens, queries = Tokens(question.key, question.value), Queries(query, question.positions)
        method, streams = member(f"multipole(block={block}, cells='{cells}')"), Streams.of(np.random.default_rng(0))
        (summary,) = method.summaries(tokens, queries, (20,), streams)
        wholes[block] = quotient(summary.sums(queries))[0]
        for rows in (slice(0, 5), slice(40, 70), slice(64, 96), slice(95, 96)):
            part = quotient(summary.sums(queries.part(rows)))[0]
            assert_allclose(part, wholes[block][rows], rtol=1e-12, atol=1e-13)
    assert np.max(np.abs(wholes[48] - wholes[32])) > 1e-6


def test_blocks_of_one_query_are_multipole():
    """The code of blocks, on the same cells."""
    question = problem(15, 40, 40)
    method, queries = member("multipole(exact=0.6)"), Queries(question.query, question.positions)
    (single,) = method.summaries(
        Tokens(question.key, question.value), queries, (20,), Streams.of(np.random.default_rng(0))
    )
    cells, labels = single.far.cells, single.far.labels
    tokens = Tokens(question.key, question.value)
    blocks = SharedCells.of(tokens, cells, labels, method.exact_keys(20), 1, queries)
    assert_allclose(quotient(blocks.sums(queries))[0], quotient(single.sums(queries))[0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("spec", ["multipole(exact=0, block=8)", "multipole(exact=0, block=8, cells='tree')"])
def test_cells_of_one_key_are_exact_attention(spec):
    question = problem(16)
    (answer,) = answers(spec, question, (40,))
    logits = question.query @ question.key.T
    assert_allclose(answer.output, softmax(logits, axis=-1) @ question.value, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_key_far_from_its_centroid_overflows_nothing(dtype):
    """Logits of keys attended exactly are above those of all centroids by more than exp takes, 88 in float32."""
    question = problem(12, 40, 60, norm=0.5)
    above = 1.2 * math.log(np.finfo(dtype).max)
    direction = question.query[0] / np.sum(question.query[0] ** 2)
    keys = question.key.copy()
    keys[7], keys[8] = keys[9] + above * direction, keys[9] - above * direction  # their mean is where key 9 is
    given = AttentionProblem(*(array.astype(dtype) for array in (question.query, keys, question.value)), None)
    (answer,) = answers("multipole(exact=0.9)", given, (20,), seed=3)
    assert_allclose(answer.output[0], question.value[7], rtol=8 * np.finfo(dtype).eps)  # the others: e^-88


def test_the_slack_of_a_trusted_output_is_a_share_of_the_range_of_values():
    value = np.array([[-3.0, 1e-9], [5.0, 3e-9]])
    guarded = GuardedSummary.of(None, None, value)
    assert_allclose(guarded.high - value[1], [8e-6, 2e-15], rtol=1e-3)
    assert_allclose(value[0] - guarded.low, [8e-6, 2e-15], rtol=1e-3)


@pytest.mark.parametrize("spec", ["multipole(cells='tree')", "multipole(block=2)"])
def test_small_blocks_copy_the_keys_of_a_few_at_a_time(spec):
    """Of all queries at once they would be 512 x 128 keys and values of 64 numbers, 34 MB."""
    assert peak_of(spec, problem(22, 512, 512, d=64), 128) < 12e6


@pytest.mark.parametrize(
    "spec",
    ["pisa", "xattention", "pbs-attn", "block-sparse(group=1)", "vertical-slash(group=8, rows=64)", "window(8):pisa"],
)
def test_logits_by_which_groups_choose_are_those_of_a_few_at_a_time(spec):
    """A size of 4 has blocks of one key: of all queries at once there would be 2048 x 2048 logits, 34 MB, or more."""
    assert peak_of(spec, problem(23, 2048, 2048, d=4), 4) < 12e6


@pytest.mark.parametrize(
    "spec, size, causal, length",
    [
        ("multipole(block=512)", 64, True, 1024), ("multipole(cells='tree', segment=128)", 256, True, 1024),
        ("pbs-attn(group=1, rows=64)", 4, True, 1024), ("pisa(block=1)", 4, True, 1024),
        ("hyperattention", 2048, False, 4096), ("kdeformer", 2048, False, 4096),
        ("sampled-keys(weights='values')", 4000, False, 4096), ("multipole(block=512)", 512, False, 1024),
        ("multipole", 512, False, 1024), ("multipole", 1024, True, 1500), ("vertical-slash", 1024, False, 2048),
        ("sinks(4):hybrid", 4096, False, 512), ("window(8):trig", 16384, True, 512),
        ("block-sparse(group=1)", 512, False, 1024), ("pisa(group=2)", 1024, True, 2048),
        ("xattention(group=1)", 512, True, 1024), ("vertical-slash(group=1, columns=0.95)", 512, True, 1024),
    ],
)  # fmt: skip
def test_memory_that_is_stated_beside_tiles(spec, size, causal, length):
    """Where the smallest tile is a block, a group or a chunk, and flags of all draws. Other parts take a few MB."""
    question = problem(24, length, length, d=16, causal=causal)
    stated = 8 * member(spec).matrix_entries(question.shape, size)
    assert 0.5 * (peak_of(spec, question, size) - 8e6) < stated < 2 * peak_of(spec, question, size)


def test_many_features_of_a_projection_are_those_of_a_few_tokens():
    """hybrid(n=200) has 804: of all tokens at once 2048 x 804 x 16 numbers, 210 MB."""
    query, key, value = np.random.default_rng(0).normal(size=(3, 2048, 4))
    sample = fb.sample_omega("iid", 16, 4, np.random.default_rng(1), map="hybrid(n=200)")
    tracemalloc.start()
    try:
        fb.linear_attention(query, key, value, sample, map="hybrid(n=200)")
        assert tracemalloc.get_traced_memory()[1] < 120e6
    finally:
        tracemalloc.stop()


def peak_of(spec, question, size):
    """Bytes that an estimate holds at most."""
    tracemalloc.start()
    try:
        list(member(spec).estimates(question, (size,), Streams.of(np.random.default_rng(0))))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
