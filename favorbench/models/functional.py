"""The second door: torch's scaled_dot_product_attention, for modules that are not of transformers."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from favorbench.models.calls import Listener
from favorbench.models.masks import additive


def functional_mode(listener: Listener) -> Any:
    """A mode of torch in which scaled_dot_product_attention is answered by the listener."""
    functional = import_module("torch.nn.functional").scaled_dot_product_attention
    mode = import_module("torch.overrides").TorchFunctionMode

    class Mode(mode):
        def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
            if function is functional and not listener.answering and listener.stack:
                return _answer_functional(listener, functional, *arguments, **keywords or {})
            return function(*arguments, **keywords or {})

    return Mode()


def _answer_functional(
    listener: Listener, function: Callable[..., Any], query: Any, key: Any, value: Any, attn_mask: Any = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """scaled_dot_product_attention of (..., H, n, d): any axes before the heads are one batch."""
    mask = attn_mask
    if is_causal:  # aligned at the top left, also where there are more keys than queries
        mask = query.new_ones(query.shape[-2], key.shape[-2]).tril().bool()
    mask = additive(mask, query)
    if mask is not None:
        mask = mask.expand(*query.shape[: max(0, mask.ndim - 3)], *mask.shape[-3:]) if mask.ndim > 3 else mask
        mask = _four_axes(mask)
    rest = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    rest |= {"enable_gqa": True} if enable_gqa else {}
    answer = listener.answer(
        listener.stack[-1], _four_axes(query), _four_axes(key), _four_axes(value), mask,
        scaling=query.shape[-1] ** -0.5 if scale is None else float(scale),
        extra={},
        own=lambda: _four_axes(function(query, key, value, **rest)),
    )  # fmt: skip
    return answer.reshape(*query.shape[:-1], value.shape[-1])


def _four_axes(array: Any) -> Any:
    """(..., n, d) as (batch, heads, n, d); missing axes are 1."""
    return array.reshape(-1, *(1,) * (3 - array.ndim), *array.shape[-3:])
