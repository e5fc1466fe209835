"""Samplers of omega. A new one is one file and one line in SAMPLERS."""

from favorbench.registry import build
from favorbench.samplers.base import FixedNormRows, GaussianRows, RawQRRows, RowLaw, Sampler
from favorbench.samplers.iid import IID
from favorbench.samplers.orthogonal import GramSchmidt, Orthogonal
from favorbench.samplers.published import OrthogonalBlog, OrthogonalQR

SAMPLERS: tuple[type[Sampler], ...] = (IID, Orthogonal, GramSchmidt, OrthogonalQR, OrthogonalBlog)


def get_sampler(spec: str | Sampler) -> Sampler:
    """The sampler that ``spec`` names, e.g. "orthogonal" or "my_module:MySampler". Raises ScenarioError."""
    return spec if isinstance(spec, Sampler) else build("sampler", spec, SAMPLERS, Sampler)


__all__ = ["SAMPLERS", "FixedNormRows", "GaussianRows", "RawQRRows", "RowLaw", "Sampler", "get_sampler"]
