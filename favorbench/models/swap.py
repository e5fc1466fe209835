"""A model with its attention replaced: all of it, some layers or some heads, without training."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from favorbench.errors import InputError, ScenarioError
from favorbench.maps import FeatureMap, get_map
from favorbench.methods import Method
from favorbench.methods.features import LinearAttention
from favorbench.models.interface import Call, attending, visible
from favorbench.models.recommended import by_head
from favorbench.models.replacements import EstimatedAttention, LayerHeads, Replacement, Tensor, replacement
from favorbench.parameters import check_whole
from favorbench.registry import nearest
from favorbench.samplers import get_sampler

Redraw = Literal["call", "layer", "model"]
REDRAWS = ("call", "layer", "model")


@dataclass
class Swapped:
    """What happened: calls whose attention was replaced, and the layers left as they are, with the reason.

    layers: the numbers of all layers that were asked.
    """

    replaced: int = 0
    left: dict[str, str] = field(default_factory=dict)
    layers: set[int] = field(default_factory=set)


@contextlib.contextmanager
def swapped(
    model: Any,
    map: str | FeatureMap | None = None,
    method: str | Method | Replacement | None = None,
    recommended: str | Path | Any = None,
    *,
    sampler: str = "orthogonal",
    num_projections: int | None = None,
    size: int | None = None,
    dtype: str | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    redraw: Redraw = "layer",
    seed: int = 0,
    draw: int = 0,
) -> Iterator[Swapped]:
    """The model with its attention replaced as long as the context lasts: ``with swapped(model, "positive"): ...``.

    map, sampler, num_projections (256): linear attention. method, size (64): a method or a baseline, a function
    f(query, key, value, size, rng) -> output of NumPy's arrays, "removed" (an output of 0), or "exact" in ``dtype``.
    recommended: what ``recommend`` found for heads captured from this model, or its directory: each head by its
    certified choice, those without one exact. layers, heads: only these; all others are the model's own. redraw:
    omega, or what a method draws, is drawn once for each layer, once for all of them, or anew at each call; heads of a
    layer share omega. seed, draw: equal ones draw the same. Causal attention is what its mask says is causal.

    Layers whose attention is not softmax(q k^T) v under no mask, a causal one or padding are left alone, and named in
    ``left``. Raises ScenarioError for what is unknown, and InputError at the end where nothing was replaced.

    >>> import favorbench as fb, torch
    >>> class Attention(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.nn.functional.scaled_dot_product_attention(x, x, x)
    >>> x = torch.randn(1, 2, 16, 4)  # (batch, heads, L, d)
    >>> with fb.swapped(model := Attention(), "positive", num_projections=32) as record:
    ...     output = model(x)
    >>> record.replaced, tuple(output.shape)
    (1, (1, 2, 16, 4))
    """
    if sum(one is not None for one in (map, method, recommended)) != 1:
        raise ScenarioError("give `map`, `method` or `recommended`, one of them")
    if redraw not in REDRAWS:
        raise ScenarioError(f"`redraw` {redraw!r}{nearest(str(redraw), REDRAWS)}; allowed: {', '.join(REDRAWS)}")
    if map is not None:
        get_sampler(sampler)
        found = EstimatedAttention(LinearAttention(get_map(map), sampler), num_projections or 256)
    elif recommended is not None:
        found = by_head(_directory(recommended))
    else:
        assert method is not None
        found = method if isinstance(method, Replacement) else replacement(method, 64 if size is None else size, dtype)
    _check_sizes(map, method, num_projections, size)
    record = Swapped()
    with attending(model, _attend(found, record, layers, heads, redraw, seed, draw)):
        yield record
    _refuse_nothing(record, found, layers)


def _check_sizes(map: Any, method: Any, num_projections: int | None, size: int | None) -> None:
    """Raise ScenarioError for a size that is none, or not of what is asked."""
    for name, given, of in (("num_projections", num_projections, map), ("size", size, method)):
        if given is not None:
            check_whole(f"`{name}`", given, 1, 1 << 20)
            if of is None:
                raise ScenarioError(
                    f"`{name}` {given}: `map` has num_projections, `method` has size, `recommended` its own"
                )


def _directory(recommended: Any) -> str | Path:
    """Where a recommendation was saved. Raises InputError where it was not."""
    path = getattr(recommended, "path", recommended)
    if not isinstance(path, str | Path):
        raise InputError("`recommended` is no saved recommendation: give its directory, or recommend with `out`")
    return path


def _refuse_nothing(record: Swapped, found: Replacement, layers: Collection[int] | None) -> None:
    """Raise InputError for a swap that did nothing: no effect would be measured, and reported as one."""
    if missing := sorted({*(layers or ()), *found.layers} - record.layers):
        there = f"it has {len(record.layers)}, 0 to {max(record.layers)}" if record.layers else "no layer asked for any"
        of = "`layers`" if set(missing) <= {*(layers or ())} else f"{found.label}: layers"
        raise InputError(f"{of} {', '.join(map(str, missing))}: not in this model; {there}")
    if not record.replaced:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(record.left.items())[:3])
        raise InputError(
            f"no attention was replaced by {found.label}: " + why
        )  # fmt: skip


def _attend(
    found: Replacement,
    record: Swapped,
    layers: Collection[int] | None,
    heads: Collection[int] | None,
    redraw: str,
    seed: int,
    draw: int,
) -> Callable[[Call], Tensor]:
    """The function that every attention call of the model goes to."""
    calls: dict[int, int] = {}

    def attend(call: Call) -> Tensor:
        count = calls[call.index] = calls.get(call.index, -1) + 1
        record.layers.add(call.index)
        if (layers is not None and call.index not in layers) or not found.is_for([call.index]):
            return call.own()
        if reason := why_not(call):
            record.left[call.name] = reason
            return call.own()
        where: Mapping[str, tuple[int, ...]] = {"model": (), "layer": (call.index,), "call": (call.index, count)}
        names = (draw, redraw, *where[redraw])
        output = estimates(call, lambda part: found.outputs(part, seed, names, call.index))
        record.replaced += 1
        if heads is None:
            return output
        only, chosen = call.own().clone(), sorted(heads)
        only[:, chosen] = output[:, chosen]
        return only

    return attend


def why_not(call: Call) -> str | None:
    """Why this attention is not softmax(q k^T) v under a mask that estimators know; None where it is."""
    if call.extra:
        return f"{', '.join(sorted(call.extra))} changes the weights"
    if call.kind not in KINDS:
        return f"its mask is {call.kind!r}"
    return None


KINDS = ("full", "causal", "padded")


def heads_of(call: Call) -> LayerHeads:
    """Its queries, keys and values, the scaling folded into the queries."""
    query = call.query * (call.scaling * call.query.shape[-1] ** 0.5)
    return LayerHeads(query, call.key, call.value, call.kind == "causal")


def estimates(call: Call, outputs: Callable[[LayerHeads], Tensor]) -> Tensor:
    """(B, H, n, d_v), of the tokens that are there: padding is no key, and its output is 0."""
    heads = heads_of(call)
    if call.kind != "padded":
        return outputs(heads)
    found = heads.query.new_zeros((*heads.query.shape[:-1], heads.value.shape[-1]))
    for i in range(len(found)):
        there = real_keys(call, i)
        rows = there if heads.shape.n == heads.shape.l else slice(None)
        one = heads.part(i)
        asked = LayerHeads(one.query[:, :, rows], one.key[:, :, there], one.value[:, :, there], heads.causal)
        found[i : i + 1, :, rows] = outputs(asked)
    return found


def real_keys(call: Call, batch: int) -> Tensor:
    """The keys of a text that are no padding: some query sees them."""
    mask = visible(call.mask[batch if call.mask.shape[0] > 1 else 0])
    return mask.flatten(0, -2).any(dim=0).nonzero()[:, 0]
