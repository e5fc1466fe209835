"""The blog post's protocol without optimisation: one estimator at a time, L x L matrices, recomputed for every R.

The same inputs, projections and cells as favorbench's sweep (drawn from its streams): the tables can be compared.
"""

import numpy as np

from favorbench.engine.plan import Draw
from favorbench.engine.study import Study
from favorbench.inputs import get_input
from favorbench.numerics.streams import stream
from favorbench.samplers import get_sampler

#: The mse of each (trial, map, sampler, R).
Table = dict[tuple[int, str, str, int], float]


def exact(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Attention as a textbook writes it: an L x L matrix, and a diagonal matrix to divide by."""
    matrix = np.exp(query @ key.T / np.sqrt(query.shape[-1]))
    return np.diag(1.0 / (matrix @ np.ones(len(key)))) @ matrix @ value


def trig(x: np.ndarray, omega: np.ndarray) -> np.ndarray:
    product = x @ omega.T
    return np.exp(np.sum(x * x, axis=-1, keepdims=True) / 2) * np.concatenate(
        [np.sin(product), np.cos(product)], axis=-1
    )


def positive(x: np.ndarray, omega: np.ndarray) -> np.ndarray:
    return np.exp(-np.sum(x * x, axis=-1, keepdims=True) / 2) * np.exp(x @ omega.T)


FEATURES = {"trig": trig, "positive": positive}


def estimate(query: np.ndarray, key: np.ndarray, value: np.ndarray, omega: np.ndarray, name: str) -> np.ndarray:
    """Linear attention as a textbook writes it: features first, but still an L x L diagonal matrix."""
    scale = query.shape[-1] ** -0.25
    phi_query, phi_key = FEATURES[name](query * scale, omega), FEATURES[name](key * scale, omega)
    normaliser = phi_query @ (phi_key.T @ np.ones(len(key)))
    return np.diag(1.0 / normaliser) @ (phi_query @ (phi_key.T @ value))


def table(study: Study, draws: list[Draw]) -> Table:
    """The mse of every cell of every draw; the exact output is recomputed for every R, as in the blog's script."""
    scenario, errors = study.scenario, {}
    for size in draws[0].sizes:
        for draw in draws:
            inputs = get_input("gaussian").draw(stream(scenario.seed, "inputs", *draw.stream_names), draw.head)
            query, key, value = inputs.query * draw.scale, inputs.key * draw.scale, inputs.value * scenario.value_scale
            reference = exact(query, key, value)
            for sampler in scenario.samplers:
                rng = stream(scenario.seed, "omega", sampler, *draw.stream_names)
                omega = get_sampler(sampler).sample(rng, size, draw.head.head_dim)
                for name in scenario.maps:
                    error = estimate(query, key, value, omega, name) - reference
                    errors[draw.trial, name, sampler, size] = float(np.mean(error * error))
    return errors
