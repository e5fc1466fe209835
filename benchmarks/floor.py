"""A lower bound for the time of a table: its matrix products and transcendental functions only."""

import numpy as np

from favorbench.baselines.members import Polynomial
from favorbench.engine.plan import Draw
from favorbench.engine.study import Study
from favorbench.maps import Taylor
from favorbench.numerics.machine import Rates, rates


class Work:
    """Counts of a table: flops of matrix products, exponentials, and pairs of cosine and sine."""

    def __init__(self, study: Study, draws: list[Draw]) -> None:
        self.flops = self.exps = self.pairs = 0.0
        for draw in draws:
            length, dim, size = draw.head.seq_len, draw.head.head_dim, draw.sizes[-1]
            rows = study.scenario.rows(draw.head.query_len)
            tokens = rows + length
            self.flops += 2.0 * rows * length * (dim + dim + 1)  # exact: logits, then [value, 1]
            self.exps += float(rows * length)
            for _ in study.samplers:
                self.flops += 2.0 * tokens * size * dim  # one projection of queries and of keys
                for feature_map in study.maps:
                    features = feature_map.num_features(size, dim)
                    self.flops += 2.0 * tokens * features * (dim + 1)
                    if feature_map.name == "trig":
                        self.pairs += tokens * size
                    else:
                        self.exps += tokens * features
            for baseline in study.baselines:
                if isinstance(baseline, Polynomial):
                    self.flops += 2.0 * tokens * Taylor(baseline.order).num_features(0, dim) * (dim + 1)

    def seconds(self, machine: Rates) -> float:
        """Seconds at the rates of a machine."""
        return self.flops / machine.gemm + self.exps / machine.exp + self.pairs / machine.cos_sin


def measured_rates(dim: int = 16) -> dict[str, Rates]:
    """The current rates, with large matrix products, and with the thin ones of attention."""
    rng = np.random.default_rng(0)
    square = rng.standard_normal((1024, 1024))
    weights, right = rng.standard_normal((128, 1024)), rng.standard_normal((1024, dim + 1))
    query, key = rng.standard_normal((128, dim)), rng.standard_normal((1024, dim))
    thin = (lambda: query @ key.T, lambda: weights @ right)
    return {
        "1024 x 1024 x 1024": rates(lambda: square @ square, 2.0 * 1024**3),
        "thin, as attention's": rates(lambda: [product() for product in thin], 2.0 * 128 * 1024 * (dim + dim + 1), 50),
    }
