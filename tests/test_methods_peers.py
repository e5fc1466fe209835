"""Methods against other implementations where they are installed: scikit-learn, transformers, the authors' code."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import KMeans
from sklearn.kernel_approximation import Nystroem

from favorbench.methods import AttentionProblem, Eva, KDEformer, get_method
from favorbench.methods.cells import nearest_centres
from favorbench.methods.hashed import angular_hash
from favorbench.methods.summaries import Queries, Tokens
from favorbench.numerics.streams import Streams
from tests.test_methods import answers

LENGTH, DIM, SIZE = 300, 5, 20


@pytest.fixture
def tokens(rng):
    return Tokens(rng.normal(size=(LENGTH, DIM)), rng.normal(size=(LENGTH, 3)))


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_cells_are_those_of_k_means(tokens, steps):
    """Lloyd's algorithm from the same keys: after so many steps the same keys share a cell."""
    method = get_method(f"clusters(lloyd={steps})")
    (summary,) = method.summaries(tokens, Queries(tokens.key, None), (SIZE,), Streams.of(np.random.default_rng(3)))
    start = tokens.key[np.random.default_rng(3).permutation(LENGTH)[:SIZE]]
    theirs = KMeans(SIZE, init=start, n_init=1, max_iter=steps, tol=0.0, algorithm="lloyd").fit(tokens.key)
    assert_array_equal(summary.labels, theirs.labels_)
    (other,) = nearest_centres(tokens.key, start, (SIZE,))
    assert np.any(other != theirs.labels_)  # the steps have moved something


def test_nystrom_is_that_of_its_features(tokens, rng):
    """Linear attention with scikit-learn's features of exp(x.y), through the same landmarks."""
    query = rng.normal(size=(40, DIM)) * 0.5
    landmarks = tokens.key[np.random.default_rng(0).permutation(LENGTH)[:SIZE]] * 0.5
    key = tokens.key * 0.5

    # fitted to the landmarks alone it draws all of them, in whatever order
    features = Nystroem(lambda x, y: np.exp(x @ y), n_components=SIZE).fit(landmarks)
    left, right = features.transform(query), features.transform(key)
    kernel = left @ right.T
    expected = kernel @ tokens.value / np.sum(kernel, axis=-1, keepdims=True)
    question = AttentionProblem(query, key, tokens.value)
    (answer,) = get_method("nystrom").estimates(question, (SIZE,), Streams.of(np.random.default_rng(0)))
    gram = np.exp(landmarks @ landmarks.T)
    bound = np.finfo(float).eps * np.linalg.cond(gram) * np.sum(np.abs(kernel), axis=-1, keepdims=True)
    bound = 10.0 * bound / np.abs(np.sum(kernel, axis=-1, keepdims=True)) * np.max(np.abs(tokens.value))
    assert np.all(np.abs(answer.output - expected) <= bound)


def test_nystromformer_agrees_with_the_one_of_transformers(rng):
    """With the identity for what is trained, at its own layout: m divides l."""
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("transformers.models.nystromformer.modeling_nystromformer")
    from transformers import NystromformerConfig

    config = NystromformerConfig(hidden_size=8, num_attention_heads=1, num_landmarks=12, segment_means_seq_len=48)
    layer = module.NystromformerSelfAttention(config).double().eval()
    layer.conv_kernel_size = None
    x = rng.normal(size=(48, 8))
    with torch.no_grad():
        for part in (layer.query, layer.key, layer.value):
            part.weight.copy_(torch.eye(8))
            part.bias.zero_()
        expected = layer(torch.asarray(x)[None])[0][0].numpy()
    scaled = x * 8**-0.25
    (found,) = answers("nystromformer", AttentionProblem(scaled, scaled, x), (12,))
    assert_allclose(found.output, expected, rtol=1e-9, atol=1e-11)


def test_released_eva_is_that_of_the_authors(rng):
    """HKUNLP/efficient-attention, its adaptive projections the identity, for one head and no projections of its own."""
    torch = pytest.importorskip("torch")
    code = pytest.importorskip("efficient_attention.eva")
    length, dim, w, count = 64, 8, 16, 8
    module = code.EVA(adaptive_proj="no-ln", num_landmarks=count, dim=dim, num_heads=1, window_size=w).double().eval()
    q, k, v = rng.normal(size=(3, length, dim))
    with torch.no_grad():
        for linear in (module.adaptive_mu_q[0], module.adaptive_mu_k[0], module.proj):
            linear.weight.copy_(torch.eye(dim))
            if linear.bias is not None:
                linear.bias.zero_()
        module.proj_and_split_heads = lambda x: tuple(torch.from_numpy(a)[None, None] for a in (q, k, v))
        theirs = module(torch.zeros(1, length, dim, dtype=torch.float64))[0].numpy()
    question = AttentionProblem(q * dim**-0.25, k * dim**-0.25, v, np.arange(length))
    ours = answers(Eva(window=w / (w + count), form="released"), question, (w + count,))[0].output
    assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def test_kdeformer_is_that_of_the_authors(rng, monkeypatch):
    """majid-daliri/kdeformer, its order of buckets put right, for values of equal norms: then shares are equal."""
    torch = pytest.importorskip("torch")
    code = pytest.importorskip("KDEformer")
    length, dim, method = 64, 6, KDEformer(block=0.25, projections=5)
    question = AttentionProblem(*rng.normal(size=(2, length, dim)), rng.normal(size=(length, 3)))
    question = question._replace(value=question.value / np.linalg.norm(question.value, axis=-1, keepdims=True))
    source = np.random.default_rng(0)
    directions, uniforms = source.standard_normal((dim, 5)), source.random(24)
    order = np.argsort(angular_hash(question.key, directions), kind="stable")
    draws = np.argsort(order)[(uniforms * length).astype(int)]  # their sample is one of sorted keys

    def rank(bits):
        codes = np.arange(2**bits)
        signs = np.where((codes[:, None] >> np.arange(bits)) & 1, 1.0, -1.0)
        return torch.from_numpy(angular_hash(signs, np.eye(bits)))

    normal = torch.randn
    monkeypatch.setattr(code, "unit_hamming_distance_array", rank)
    monkeypatch.setattr(torch, "randn", lambda *shape, **kwargs: torch.from_numpy(directions)[None, None]
                        if len(shape) == 1 and len(shape[0]) == 4 else normal(*shape, **kwargs))  # fmt: skip
    monkeypatch.setattr(torch.Tensor, "multinomial", lambda *a, **k: torch.from_numpy(draws)[None])
    stable = torch.sort
    monkeypatch.setattr(torch, "sort", lambda a, dim: stable(a, dim=dim, stable=True))
    theirs = code.KDEformer(sample_size=24, num_projs=5, Bucket_size=8).double()
    inputs = [torch.from_numpy(a)[None, :, None].contiguous() for a in question[:3]]
    output = theirs(*inputs)[0, 0].numpy()
    assert_allclose(answers(method, question, (32,))[0].output, output, rtol=1e-6, atol=1e-8)
