"""Independent projections."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from favorbench.numerics.shapes import Float
from favorbench.samplers.base import Sampler
from favorbench.samplers.coupling import INDEPENDENT, Coupling


@dataclass(frozen=True)
class IID(Sampler):
    """Independent rows w ~ N(0, I). Rahimi & Recht 2007, "Random Features for Large-Scale Kernel Machines"."""

    name: ClassVar[str] = "iid"
    reference: ClassVar[str] = "Rahimi & Recht 2007"
    gaussian_rows: ClassVar[bool] = True
    coupling: ClassVar[Coupling] = INDEPENDENT

    def sample(
        self, rng: np.random.Generator, num_projections: int, head_dim: int
    ) -> Float[np.ndarray, "num_projections head_dim"]:
        return rng.standard_normal((num_projections, head_dim))
