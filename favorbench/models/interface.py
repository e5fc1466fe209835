"""Every attention call of a model, given to a function: what is asked, what is hidden, and the model's own answer.

A call comes through one of two doors: the attention functions that transformers' models look up by name
(AttentionInterface), or torch's scaled_dot_product_attention for all else. transformers keeps what is registered for
the whole process, so one function is registered, which looks up the listener.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from typing import Any, Literal

from favorbench.errors import ModelError

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


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call: softmax(scaling q k^T + mask) v is due, unless ``extra`` says otherwise.

    query (B, H, n, d), key (B, H, l, d), value (B, H, l, d_v), groups of heads repeated, rotary positions applied.
    module: whose call it is, and its name, dotted as in named_modules; of the model itself its class. index: its number
    among the calls of one forward pass, from 0. mask: (B or 1, H or 1, n, l), added to the logits, or None. kind: what
    the mask is. extra: other keywords that may change the mathematics (soft caps, sinks, position biases). own:
    computes what the model's own function gives, (B, H, n, d_v).
    """

    module: Any
    name: str
    index: int
    query: Any
    key: Any
    value: Any
    mask: Any
    kind: Kind
    scaling: float
    extra: dict[str, Any]
    own: Callable[[], Any]


#: A call's answer, (B, H, n, d_v).
Attend = Callable[[Call], Any]


@dataclass
class Listener:
    """Who is listening to which model: its modules' names, what its functions were, and where the pass under way is."""

    attend: Attend
    names: dict[Any, str]
    before: dict[int, tuple[Any, str | None]]
    stack: list[Any] = field(default_factory=list)
    calls: int = 0
    index: int = 0
    answering: bool = False
    kinds: list[tuple[Any, Kind]] = field(default_factory=list)

    def answer(self, module: Any, query: Any, key: Any, value: Any, mask: Any, **rest: Any) -> Any:
        """What the listener makes of a call."""
        name = self.names.get(module) or type(module).__name__
        call = Call(
            module, name, self.index, query, *_repeated(query, key, value), mask,
            self.kind(mask, (query.shape[-2], key.shape[-2])), **rest,
        )  # fmt: skip
        self.calls, self.index, self.answering = self.calls + 1, self.index + 1, True
        try:
            output = self.attend(call)
        finally:
            self.answering = False
        wanted = (*query.shape[:-1], value.shape[-1])
        if tuple(output.shape) != wanted:
            raise ModelError(f"{call.name}: the attention given returned shape {tuple(output.shape)}, not {wanted}")
        return output.to(query.dtype)

    def kind(self, mask: Any, shape: tuple[int, int]) -> Kind:
        """The kind of a mask, found once where calls share it. It is kept meanwhile: another could get its address."""
        place = _place(mask)
        for known, kind in self.kinds:
            if mask is not None and _place(known) == place:
                return kind
        kind = kind_of(mask, shape)
        if mask is not None:
            self.kinds = [(mask, kind), *self.kinds[:1]]
        return kind

    def enter(self, module: Any, *_: Any) -> None:
        """Before a module's forward; the outermost begins a pass."""
        if not self.stack:
            self.index, self.kinds = 0, []
        self.stack.append(module)

    def leave(self, *_: Any) -> None:
        """After it, also when it failed."""
        self.stack.pop()


def _repeated(query: Any, key: Any, value: Any) -> tuple[Any, Any]:
    """Key and value heads, each repeated for the queries of its group."""
    if query.shape[1] % key.shape[1]:
        raise ModelError(f"{query.shape[1]} heads of queries do not divide into {key.shape[1]} of keys")
    times = query.shape[1] // key.shape[1]
    return (key, value) if times == 1 else (key.repeat_interleave(times, 1), value.repeat_interleave(times, 1))


def _place(mask: Any) -> tuple[Any, ...] | None:
    """What tells whether two tensors are the same numbers in the same memory."""
    return None if mask is None else (mask.data_ptr(), tuple(mask.shape), mask.stride(), mask.dtype, mask._version)


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


def check_plain(model: Any) -> None:
    """Raise ModelError for a module that is compiled or quantised: its calls would not come by, or be others."""
    torch = import_module("torch")
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"a torch.nn.Module is needed, not {type(model).__name__}")
    for module in model.modules():
        home = type(module).__module__
        compiled = getattr(module, "_compiled_call_impl", None) is not None or home.startswith("torch._dynamo")
        if compiled or isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"{type(model).__name__} is compiled: give it before torch.compile (its _orig_mod) or torch.jit"
            )
        if home.startswith(("torch.ao.nn.", "bitsandbytes", "torchao", "auto_gptq", "awq")):
            raise ModelError(f"{type(model).__name__} is quantised ({type(module).__name__}): give it unquantised")
    for name, parameter in model.named_parameters():  # a quantiser may be named and have restored all: see the weights
        home = type(parameter.data).__module__
        if not parameter.is_floating_point() or parameter.dtype.itemsize < 2 or home.startswith("torchao"):
            raise ModelError(f"{type(model).__name__} is quantised ({name} is {parameter.dtype}): give it unquantised")


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
