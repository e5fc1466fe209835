"""The same table as a straightforward vectorised loop: each cell alone, no diagonal matrices, nothing shared."""

import sys

import numpy as np

from benchmarks.plain import FEATURES, Table
from benchmarks.tables import TABLE, studies
from favorbench.engine.plan import Draw
from favorbench.engine.study import Study
from favorbench.inputs import get_input
from favorbench.numerics.streams import stream
from favorbench.samplers import get_sampler


def exact(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Attention through an L x L matrix, shifted by its row maximum."""
    logits = query @ key.T / np.sqrt(query.shape[-1])
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights @ value / weights.sum(axis=-1, keepdims=True)


def estimate(query: np.ndarray, key: np.ndarray, value: np.ndarray, omega: np.ndarray, name: str) -> np.ndarray:
    """Linear attention: features, a product over keys, a product over features, a quotient."""
    scale = query.shape[-1] ** -0.25
    phi_query, phi_key = FEATURES[name](query * scale, omega), FEATURES[name](key * scale, omega)
    return phi_query @ (phi_key.T @ value) / (phi_query @ phi_key.sum(axis=0))[:, None]


def table(study: Study, draws: list[Draw]) -> Table:
    """The mse of every cell of every draw, from the same inputs and projections as favorbench's."""
    scenario, errors = study.scenario, {}
    for draw in draws:
        inputs = get_input("gaussian").draw(stream(scenario.seed, "inputs", *draw.stream_names), draw.head)
        query, key, value = inputs.query * draw.scale, inputs.key * draw.scale, inputs.value * scenario.value_scale
        for sampler in scenario.samplers:
            for name in scenario.maps:
                for size in draw.sizes:
                    rng = stream(scenario.seed, "omega", sampler, *draw.stream_names)
                    omega = get_sampler(sampler).sample(rng, size, draw.head.head_dim)
                    error = estimate(query, key, value, omega, name) - exact(query, key, value)
                    errors[draw.trial, name, sampler, size] = float(np.mean(error * error))
    return errors


def main() -> None:
    """A standalone script: compute the table for a number of draws and print the median of each cell."""
    ((study, draws),) = studies(int(sys.argv[1]), TABLE)
    cells: dict[tuple, list[float]] = {}
    for (_, *cell), mse in table(study, draws).items():
        cells.setdefault(tuple(cell), []).append(mse)
    for cell, errors in cells.items():
        print(*cell, f"{np.median(errors):.2e}")


if __name__ == "__main__":
    main()
