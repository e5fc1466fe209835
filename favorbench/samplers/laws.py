"""Laws of one row of omega and of two, through the expectations that kernels and variances are made of."""

from favorbench.samplers.pair_laws import (
    AtAngle,
    CoupledNorms,
    OnSpheres,
    OppositeRow,
    PairLaw,
    SameRow,
    SignFlipped,
    chi_quantile,
    chi_upper_quantile,
)  # fmt: skip
from favorbench.samplers.row_laws import (
    FixedNormRows,
    FourthMoments,
    GaussianRows,
    IsotropicRows,
    RawQRRows,
    RowLaw,
    SecondMomentRows,
    SymmetrisedRows,
)  # fmt: skip

__all__ = [
    "AtAngle", "CoupledNorms", "FixedNormRows", "FourthMoments", "GaussianRows", "IsotropicRows", "OnSpheres",
    "OppositeRow", "PairLaw", "RawQRRows", "RowLaw", "SameRow", "SecondMomentRows", "SignFlipped", "SymmetrisedRows",
    "chi_quantile", "chi_upper_quantile",
]  # fmt: skip
