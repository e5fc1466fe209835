"""Methods against other implementations where they are installed: scikit-learn and transformers."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import KMeans
from sklearn.kernel_approximation import Nystroem

from favorbench.methods import AttentionProblem, get_method
from favorbench.methods.clusters import nearest_centres
from favorbench.methods.summaries import Queries, Tokens
from favorbench.numerics.streams import Streams
from tests.test_methods import answers

LENGTH, DIM, SIZE = 300, 5, 20


@pytest.fixture
def tokens(rng):
    return Tokens(rng.normal(size=(LENGTH, DIM)), rng.normal(size=(LENGTH, 3)))


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_cells_are_those_of_k_means(tokens, steps):
    """Lloyd's algorithm from the same keys: after the same number of steps the same keys share a cell."""
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
