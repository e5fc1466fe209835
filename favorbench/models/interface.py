"""Every attention call of a model, given to a function: what is asked, what is hidden, and the model's own answer.

Two doors, and a call comes through one of them: the attention functions that transformers' models look up by name
(AttentionInterface), and torch's scaled_dot_product_attention for all else. transformers keeps what is registered for
the whole process, so one function is, which looks up who is listening.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib import import_module
from importlib.metadata import version
from typing import Any

from favorbench.errors import ModelError
from favorbench.models.calls import Attend, Call, Listener
from favorbench.models.functional import functional_mode
from favorbench.models.masks import additive
from favorbench.models.plain import check_plain

__all__ = ["Attend", "Call", "attending"]

#: In transformers' registers. With "sdpa" or "flash" in it some models take it for theirs.
NAME = "favorbench"

#: Keywords that change what attention computes, when they are there: named in refusals. Found by the numbers, too.
CHANGING = ("softcap", "s_aux", "position_bias")

_LISTENER: ContextVar[Listener | None] = ContextVar("favorbench_listener", default=None)


@contextlib.contextmanager
def attending(model: Any, attend: Attend) -> Iterator[None]:
    """Inside, every attention call of a model goes to ``attend``; afterwards the model is what it was.

    model: a torch module, of transformers or not. Raises ModelError for compiled and quantised modules, and at the end,
    if there was no error, for models none of whose calls came by: their outputs were their own.
    """
    check_plain(model)
    listener = Listener(attend, {module: name for name, module in model.named_modules()}, _implementations(model))
    handles = [module.register_forward_pre_hook(listener.enter) for module in listener.names]
    handles += [module.register_forward_hook(listener.leave, always_call=True) for module in listener.names]
    token = _LISTENER.set(listener)
    try:
        if listener.before:
            _register()
            _redirect(model)
        with functional_mode(listener):
            yield
    finally:
        _LISTENER.reset(token)
        for handle in handles:
            handle.remove()
        for config, implementation in listener.before.values():
            config._attn_implementation_internal = implementation
    if not listener.calls:
        raise ModelError(_why_no_call(model))


def _implementations(model: Any) -> dict[int, tuple[Any, str | None]]:
    """The attention that each configuration in a model names, by id; empty for what is not of transformers."""
    if "transformers" not in sys.modules:
        return {}
    base = import_module("transformers").PreTrainedConfig
    waiting = [module.config for module in model.modules() if isinstance(getattr(module, "config", None), base)]
    found: dict[int, tuple[Any, str | None]] = {}
    while waiting:
        config = waiting.pop()
        if isinstance(config, base) and id(config) not in found:
            found[id(config)] = config, config._attn_implementation_internal
            waiting += [getattr(config, key, None) for key in config.sub_configs]
    return found


def _register() -> None:
    """Our attention and our masks among those of transformers. Without the second masks are dropped in silence."""
    transformers = import_module("transformers")
    transformers.AttentionInterface.register(NAME, _attention)
    transformers.AttentionMaskInterface.register(NAME, _mask)


def _redirect(model: Any) -> None:
    """Ask the model, and each model of transformers inside it, for the function registered."""
    transformers = import_module("transformers")
    logger = import_module("transformers.utils.logging")
    verbosity = logger.get_verbosity()
    logger.set_verbosity_error()  # of families off the interface we say more than its warning does
    try:
        for module in model.modules():
            if isinstance(module, transformers.PreTrainedModel):
                module.set_attn_implementation(NAME)
    finally:
        logger.set_verbosity(verbosity)


def _mask(*arguments: Any, **keywords: Any) -> Any:
    """Additive masks that are always there: a function that is given None cannot know whether it means causal."""
    eager_mask = import_module("transformers.masking_utils").eager_mask
    return eager_mask(*arguments, **keywords | {"allow_is_bidirectional_skip": False})


def _attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **keywords: Any) -> tuple[Any, Any]:
    """As transformers calls it; key and value (B, G, l, d) with G dividing H; output (B, n, H, d_v), no weights."""
    listener = _LISTENER.get()
    if listener is None or module not in listener.names or listener.answering:
        return _own_function(module, None, keywords)(module, query, key, value, mask, **keywords)
    own = _own_function(module, listener, keywords)
    sliced = mask if mask is None else additive(mask, query)[..., : key.shape[-2]]
    scaling = keywords.get("scaling")
    answer = listener.answer(
        module, query, key, value, sliced,
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        extra={name: keywords[name] for name in CHANGING if keywords.get(name) is not None},
        own=lambda: own(module, query, key, value, mask, **keywords)[0].transpose(1, 2),
    )  # fmt: skip
    return answer.transpose(1, 2).contiguous(), None


def _own_function(module: Any, listener: Listener | None, keywords: dict[str, Any]) -> Callable[..., Any]:
    """What would compute without us: torch's fused attention where the model had it, else the family's eager one."""
    homes = [sys.modules[kind.__module__] for kind in type(module).__mro__ if kind.__module__ in sys.modules]
    _, before = (listener.before if listener else {}).get(id(getattr(module, "config", None)), (None, None))
    if before == "sdpa" and keywords.get("softcap") is None:
        for home in homes:
            if hasattr(home, "ALL_ATTENTION_FUNCTIONS"):
                return home.ALL_ATTENTION_FUNCTIONS["sdpa"]
    for home in homes:
        if hasattr(home, "eager_attention_forward"):
            return home.eager_attention_forward
    raise ModelError(f"{type(module).__name__} has no attention of its own to compare with (eager_attention_forward)")


def _why_no_call(model: Any) -> str:
    """Of a model that kept its attention to itself."""
    name = type(model).__name__
    if "transformers" in sys.modules and isinstance(model, import_module("transformers").PreTrainedModel):
        home = f"transformers {version('transformers')}"
        return (
            f"{name}: no attention call came by: in {home} this family computes attention in code of its own, "
            "neither through AttentionInterface nor torch's scaled_dot_product_attention"
        )
    return (
        f"{name}: no attention call came by: it does not call torch's scaled_dot_product_attention "
        "(nn.MultiheadAttention and nn.TransformerEncoder hide theirs; timm: set_fused_attn(True) before create_model)"
    )
