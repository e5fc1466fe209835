"""Samplers of omega. A new one is a class and a line in SAMPLERS."""

from favorbench.registry import build
from favorbench.samplers.base import Sampler
from favorbench.samplers.iid import IID, Antithetic, Halton, MomentMatched, Sobol
from favorbench.samplers.laws import FixedNormRows, GaussianRows, PairLaw, RawQRRows, RowLaw
from favorbench.samplers.orthogonal import (
    SORF,
    GramSchmidt,
    NormCoupled,
    Orthogonal,
    OrthogonalBlog,
    OrthogonalQR,
    OrthogonalSqrtD,
    Simplex,
    SimplexPlus,
    StratifiedNorms,
)

SAMPLERS: tuple[type[Sampler], ...] = (
    IID, Orthogonal, GramSchmidt, OrthogonalSqrtD, SORF, Simplex, SimplexPlus, NormCoupled, StratifiedNorms, Sobol,
    Halton, MomentMatched, OrthogonalQR, OrthogonalBlog,
)  # fmt: skip

#: ``prefix:sampler`` for any sampler, a user's too; they nest.
TRANSFORMS: tuple[type[Antithetic], ...] = (Antithetic,)


def get_sampler(spec: str | Sampler) -> Sampler:
    """Return the sampler that ``spec`` names.

    Parameters
    ----------
    spec : str or Sampler
        "orthogonal", "antithetic:orthogonal", "my_module:MySampler". A sampler is returned as it is.

    Raises
    ------
    ScenarioError
        For an unknown name or parameter, with the nearest name.

    Examples
    --------
    >>> import favorbench as fb, numpy as np
    >>> fb.get_sampler("antithetic:iid").sample(np.random.default_rng(0), 4, 2).shape
    (4, 2)
    """
    return spec if isinstance(spec, Sampler) else build("sampler", spec, SAMPLERS, Sampler, TRANSFORMS)


__all__ = [
    "SAMPLERS", "TRANSFORMS", "Antithetic", "FixedNormRows", "GaussianRows", "PairLaw", "RawQRRows", "RowLaw",
    "Sampler", "get_sampler",
]  # fmt: skip
