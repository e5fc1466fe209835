"""Every registered estimator against its stored errors on real heads: whoever makes one worse hears of it here.

The gate that ``attention_error`` is for others, used on ourselves. After a change that is meant:
``pytest tests/test_baseline.py --favorbench-update``, and commit tests/test_baseline/estimators.json.
"""

import numpy as np
import pytest

import favorbench as fb
from favorbench.inputs import Head, get_input

SIZE, DRAWS, TOKENS = 16, 18, 128
ALPHA = 1e-3


def heads():
    """q, k, v of two heads that differ most, the first tokens."""
    law = get_input("minilm")
    drawn = [law.draw(np.random.default_rng(0), Head(label, TOKENS, TOKENS, 32)) for label in ("L0H1", "L5H0")]
    return tuple(np.stack(arrays) for arrays in zip(*drawn, strict=True))


def of_map(name, sampler):
    def estimate(query, key, value, size, rng):
        sample = fb.sample_omega(sampler, size, query.shape[-1], rng, map=name)
        return fb.linear_attention(query, key, value, sample, map=name)

    return estimate


def of_method(name):
    def estimate(query, key, value, size, rng):
        return fb.method_attention(query, key, value, fb.get_baseline(name) if name in BASELINES else name, size, rng)

    return estimate


BASELINES = [baseline.name for baseline in fb.BASELINES]


def estimators():
    """Every map, under iid and orthogonal projections where it has any, every method and every baseline."""
    found = {}
    for member in (each() for each in fb.MAPS):
        samplers = ("iid", "orthogonal") if member.randomness == "omega" else ("iid",)
        for sampler in samplers:
            name = f"{member.name} / {sampler}" if len(samplers) > 1 else member.name
            found[name] = of_map(member.name, sampler)
    return found | {name: of_method(name) for name in [*(method.name for method in fb.METHODS), *BASELINES]}


def test_no_estimator_has_become_worse(attention_error):
    attention_error.check(estimators(), "estimators", heads(), draws=DRAWS, size=SIZE, factor=1.05, alpha=ALPHA)


def test_a_worse_estimator_is_caught(attention_error):
    """The control: a quarter of the clusters, or landmarks."""
    fewer = {name: quartered(of_method(name)) for name in ("clusters", "nystromformer")}
    attention_error.update = False  # else they would be stored in place of all estimators
    with pytest.raises(pytest.fail.Exception) as caught:
        attention_error.check(fewer, "estimators", heads(), draws=DRAWS, size=SIZE, factor=1.05, alpha=ALPHA)
    assert {f"+ {name}, h{i}" for name in fewer for i in range(2)} <= {
        line.partition(":")[0] for line in str(caught.value).splitlines()
    }


def quartered(function):
    def estimate(query, key, value, size, rng):
        return function(query, key, value, size // 4, rng)

    return estimate
