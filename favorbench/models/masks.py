"""What a mask lets a query see, read from the mask itself: flags of modules say one thing and do another."""

from importlib import import_module
from typing import Any, Literal

Kind = Literal["full", "causal", "padded", "window", "bias", "other"]


def kind_of(mask: Any, shape: tuple[int, int]) -> Kind:
    """What a mask of n queries on l keys is; shape: (n, l).

    mask: additive, (..., n, l), nothing or what is below half of its type's lowest number is hidden; None: full.
    causal: query i sees the keys up to i + l - n. padded: every query sees the same keys, not all, or the items of a
    batch differ so. window: keys at some consecutive distances. bias: finite terms are added to logits.
    """
    if mask is None:
        return "full"
    seen = visible(mask)
    if bool((mask.masked_fill(~seen, 0) != 0).any()):
        return "bias"
    if bool(seen.all()):
        return "full"
    n, length = shape
    if bool((seen == seen.new_ones(n, length).tril(length - n)).all()):
        return "causal"
    if bool((seen == seen[..., :1, :]).all()):
        return "padded"
    return "window" if _is_band(seen) else "other"


def visible(mask: Any) -> Any:
    """Which keys an additive mask leaves: bool, of its shape."""
    return mask > mask.new_full((), _lowest(mask)) / 2


def additive(mask: Any, like: Any) -> Any:
    """A boolean mask (true: seen) as one that is added to logits, in the type of a tensor; others as they are."""
    if mask is None or mask.dtype != import_module("torch").bool:
        return mask
    return like.new_zeros(mask.shape).masked_fill(~mask, _lowest(like))


def _lowest(tensor: Any) -> float:
    return import_module("torch").finfo(tensor.dtype).min


def _is_band(seen: Any) -> bool:
    """Whether it depends on the distance of key and query alone, and the distances seen are consecutive."""
    if not bool((seen[..., 1:, 1:] == seen[..., :-1, :-1]).all()):
        return False
    by_distance = import_module("torch").cat([seen[..., :, 0].flip(-1), seen[..., 0, 1:]], dim=-1)
    changes = (by_distance[..., 1:] != by_distance[..., :-1]).sum(-1)
    return bool((changes <= 2).all() and (~by_distance[..., 0] | ~by_distance[..., -1]).all())
