"""Replace the attention of a model without training: in all layers and heads, or in some."""

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from favorbench.errors import InputError, ScenarioError
from favorbench.maps import FeatureMap, get_map
from favorbench.methods import Method
from favorbench.methods.features import LinearAttention
from favorbench.models.interface import HIDDEN, Call, intercept_attention, visible, warn_of_hidden
from favorbench.models.recommended import ByHead, by_head, heads_by_layer
from favorbench.models.replacements import EstimatedAttention, LayerHeads, Replacement, StreamNames, Tensor, replacement
from favorbench.numerics.arrays import of_python
from favorbench.parameters import check_name, check_whole, whole_numbers
from favorbench.samplers import get_sampler

Redraw = Literal["call", "layer", "model"]
REDRAWS = ("call", "layer", "model")

KINDS = ("full", "causal", "padded", "padded and causal")


@dataclass
class Replaced:
    """A record of a replacement: the number of replaced calls, and the unchanged layers with the reason.

    layers: the numbers of all layers that were called.
    """

    replaced: int = 0
    left: dict[str, str] = field(default_factory=dict)
    layers: set[int] = field(default_factory=set)


@contextlib.contextmanager
def replace_attention(
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
    exact_heads: Mapping[int, Collection[int]] | None = None,
    redraw: Redraw = "layer",
    seed: int = 0,
    draw: int = 0,
) -> Iterator[Replaced]:
    """Replace the attention of a model within a context.

    Give ``map``, ``method`` or ``recommended``. Only softmax(q k^T) v without a mask, or with a causal mask, a padding
    mask, or both, is replaced. Other layers are left unchanged and named in ``left``; a warning says where a layer is
    replaced in some calls only, and which attention hides its calls (nn.MultiheadAttention does).

    Parameters
    ----------
    model
        A torch module that is neither compiled nor quantised.
    map
        A feature map, for linear attention with ``sampler`` and ``num_projections`` (256).
    method
        A method or baseline of ``size`` (64), a function f(query, key, value, size, rng) -> output of NumPy arrays,
        "removed" (an output of 0), or "exact" in ``dtype``.
    recommended
        The result of ``recommend`` for this model or for heads captured from it, or its directory. Heads without a
        certified setting stay exact.
    sampler, num_projections
        Sampler and number of projections of ``map``.
    size
        Size of ``method``.
    dtype
        Precision of exact attention.
    layers, heads
        Replace only these.
    exact_heads
        Heads that stay exact, around ``map`` or ``method``: {7: [6, 7, 8]}, or "L7H6-8" with commas between more of
        them. A few heads often cause most of the loss.
    redraw
        Draw once for each "layer", once for the "model", or anew at each "call". Heads of a layer share omega.
    seed, draw
        Equal numbers give equal draws.

    Yields
    ------
    Replaced
        The number of replaced calls, and the unchanged layers.

    Raises
    ------
    ScenarioError
        An argument is wrong.
    InputError
        Layers or heads are not in the model, or all calls were left as they are.
    ModelError
        No attention call can be intercepted.

    Examples
    --------
    >>> import favorbench as fb, torch
    >>> class Attention(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.nn.functional.scaled_dot_product_attention(x, x, x)
    >>> x = torch.randn(1, 2, 16, 4)  # (batch, heads, L, d)
    >>> with fb.replace_attention(model := Attention(), "positive", num_projections=32) as record:
    ...     output = model(x)
    >>> record.replaced, tuple(output.shape)
    (1, (1, 2, 16, 4))
    """
    if sum(choice is not None for choice in (map, method, recommended)) != 1:
        raise ScenarioError("give `map`, `method` or `recommended`, one of them")
    check_name("redraw", redraw, REDRAWS)
    layers, heads = whole_numbers("`layers`", layers), whole_numbers("`heads`", heads)
    seed, draw, num_projections, size = of_python((seed, draw, num_projections, size))
    for name, number in (("seed", seed), ("draw", draw)):
        check_whole(f"`{name}`", number, 0, 2**63 - 1)
    for name, given, owner in (("num_projections", num_projections, map), ("size", size, method)):
        if given is not None:
            check_whole(f"`{name}`", given, 1, 1 << 20)
            if owner is None:
                raise ScenarioError(f"`{name}` {given}: `map` has num_projections, `method` has size")
    if dtype is not None and method is None:
        raise ScenarioError("`dtype` is the precision of exact attention: use it with `method` exact")
    if map is not None:
        get_sampler(sampler)
        chosen = EstimatedAttention(LinearAttention(get_map(map), sampler), num_projections or 256)
    elif method is not None:
        chosen = method if isinstance(method, Replacement) else replacement(method, size or 64, dtype)
    else:
        path = getattr(recommended, "path", recommended)
        if not isinstance(path, str | Path):
            raise InputError("`recommended` is not a saved recommendation: give its directory, or recommend with `out`")
        chosen = by_head(path)
    if exact_heads is not None:
        if recommended is not None or not isinstance(exact_heads, Mapping | str):
            raise ScenarioError(
                "`exact_heads` are heads of `map` or `method`, such as {7: [6, 7, 8]} or 'L7H6-8'; give both"
            )
        chosen = ByHead.but_exact(chosen, heads_by_layer(exact_heads))
    with replace_calls(model, chosen, layers, heads, redraw, seed, draw) as record:
        yield record
    warn_of_hidden(model, [name for name, reason in record.left.items() if reason == HIDDEN])


@contextlib.contextmanager
def replace_calls(
    model: Any, chosen: Replacement, layers: Collection[int] | None, heads: Collection[int] | None, redraw: str,
    seed: int, draw: int,
) -> Iterator[Replaced]:  # fmt: skip
    """Compute the attention calls of a model with a replacement. Raises InputError if nothing was replaced."""
    record, calls, done, whole, cached = Replaced(), Counter[int](), set[str](), set[str](), set[str]()
    by_query = all(member.kind != "method" for member in chosen.members())

    def attend(call: Call) -> Tensor:
        names = stream_names(redraw, draw, call.index, calls[call.index])
        calls[call.index] += 1
        record.layers.add(call.index)
        if (layers is not None and call.index not in layers) or not chosen.is_for([call.index]):
            return call.own()
        if reason := unsupported_reason(call):
            record.left[call.name] = reason
            return call.own()
        if outside := sorted({*(heads or ())} - {*range(call.query.shape[1])}):
            raise InputError(f"`heads` {outside[0]}: {call.name} has heads 0 to {call.query.shape[1] - 1}")
        own = call.own().to(call.query) if call.padded else None  # under autocast in half precision
        output = estimates(call, lambda part: chosen.outputs(part, seed, names), own)
        record.replaced += 1
        done.add(call.name)
        if call.causal or call.key.shape[2] == 1:  # of one token the mask is full
            whole.add(call.name)
        elif call.name in whole and call.query.shape[2] < call.key.shape[2] and not by_query:
            cached.add(call.name)
        if heads is None:
            return output
        mixed, selected = call.own().to(call.query, copy=True), sorted(heads)
        mixed[:, selected] = output[:, selected]
        return mixed

    with intercept_attention(model, attend) as hook:
        yield record
    record.left.update(dict.fromkeys(hook.unheard(), HIDDEN))
    for name, given in (("`layers`", {*(layers or ())}), (f"{chosen.label}: layers", {*chosen.needed_layers})):
        if missing := ", ".join(map(str, sorted(given - record.layers))):
            count = len(record.layers)
            raise InputError(f"{name} {missing}: not in this model; it has {count} layers, 0 to {count - 1}")
    if not record.replaced:
        reasons = "; ".join(": ".join(item) for item in list(record.left.items())[:3])
        raise InputError(f"no attention was replaced by {chosen.label}: {reasons}")
    if partly := sorted(done & record.left.keys()):
        names = f"{partly[0]}{f' and {len(partly) - 1} more' if partly[1:] else ''}"
        warnings.warn(f"{names}: replaced in some calls, and exact in others: {record.left[partly[0]]}", stacklevel=5)
    if cached:
        warnings.warn(
            f"{min(cached)}: {chosen.label} of one query on cached keys may be unlike that of the whole text; "
            "to generate text, set use_cache=False", stacklevel=5,
        )  # fmt: skip


def stream_names(redraw: str, draw: int, layer: int, call: int = 0) -> StreamNames:
    """The names of a replacement's random stream in one call of a layer."""
    return draw, redraw, *{"model": (), "layer": (layer,), "call": (layer, call)}[redraw]


def unsupported_reason(call: Call) -> str | None:
    """Explain why an attention call cannot be replaced; None for softmax(q k^T) v under a supported mask."""
    if not len(call.query):
        return "its batch is empty"
    if call.extra:
        return f"{', '.join(sorted(call.extra))} changes the weights"
    if call.kind == "causal" and call.query.shape[2] != call.key.shape[2]:
        return "its queries are fewer than its keys (a cache)"
    return None if call.kind in KINDS else f"its mask is {call.kind!r}"


def heads_of(call: Call) -> LayerHeads:
    """The queries, keys and values of a call, with the scaling folded into the queries."""
    query = call.query * (call.scaling * call.query.shape[-1] ** 0.5)
    return LayerHeads(query, call.key, call.value, call.causal, group=call.group, layer=call.index)


def estimates(call: Call, outputs: Callable[[LayerHeads], Tensor], own: Tensor | None = None) -> Tensor:
    """The output (B, H, n, d_v) of a call.

    Padding is left out: its output is that of ``own``, or 0. So is any query whose key is hidden, which looks the same.
    """
    heads = heads_of(call)
    if not call.padded:
        return outputs(heads)
    output = heads.query.new_zeros(heads.output_shape) if own is None else own.clone()
    for i, rows, real in without_padding(call):
        output[i : i + 1, :, rows] = outputs(real)
    return output


def without_padding(call: Call) -> Iterator[tuple[int, Any, LayerHeads]]:
    """The items of a padded call that are not padding alone: their numbers, the rows of their queries, and the rest."""
    heads = heads_of(call)
    for i in range(len(heads.query)):
        mask = visible(call.mask[i if call.mask.shape[0] > 1 else 0])
        keys = mask[0, -1].nonzero()[:, 0]  # the last query sees all that any does
        if not len(keys):  # all padding
            continue
        rows = keys if call.causal or (heads.shape.n == heads.shape.l and not call.crosses) else slice(None)
        query, key, value = (array[i : i + 1] for array in heads[:3])
        yield i, rows, heads._replace(query=query[:, :, rows], key=key[:, :, keys], value=value[:, :, keys])
