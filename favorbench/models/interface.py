"""Intercept every attention call of a model: its tensors, the kind of its mask, and the model's own output.

Two kinds of calls are intercepted: those of attention functions that transformers models look up by name
(AttentionInterface), and those of torch's scaled_dot_product_attention. transformers keeps registered functions for the
whole process, so a single function is registered, which looks up the current hook.
"""

import contextlib
import inspect
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from favorbench.errors import ModelError
from favorbench.models import torch, transformers

Kind = Literal["full", "causal", "padded", "padded and causal", "window", "bias", "other"]

#: What hides a key: models add -inf, the lowest number of a type, -1e9 or -1e4, which is -9984 in bfloat16.
HIDING = -9e3


def kind_of(mask: Any, shape: tuple[int, int]) -> Kind:
    """The kind of a mask of n queries on l keys; shape: (n, l).

    mask: additive, (..., n, l); entries below HIDING hide a key; None: full. causal:
    query i sees the keys up to i + l - n. padded: each query of an item, in all heads, sees the same keys, but not all.
    padded and causal: each real token of an item sees the real ones up to itself, padding none but these or all.
    window: keys at some consecutive distances. bias: finite terms are added to logits, or trained, from 0 on.
    """
    if mask is None:
        return "full"
    mask = _four_axes(mask)
    seen = visible(mask)
    if (mask.requires_grad and torch.is_grad_enabled()) or bool((mask.masked_fill(~seen, 0) != 0).any()):
        return "bias"
    if bool(seen.all()):
        return "full"
    n, length = shape
    if bool((seen == seen.new_ones(n, length).tril(length - n)).all()):
        return "causal"
    if bool((seen == seen[..., :1, :1, :]).all()):
        return "padded"
    if n == length and _is_padded_and_causal(seen):
        return "padded and causal"
    return "window" if _is_band(seen) else "other"


def visible(mask: Any) -> Any:
    """The keys that an additive mask leaves visible: bool, of its shape."""
    return mask > HIDING


def additive(mask: Any, like: Any) -> Any:
    """Convert a boolean mask (true: visible) to one that is added to logits, in the dtype of ``like``."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return like.new_zeros(mask.shape).masked_fill(~mask, torch.finfo(like.dtype).min)


def _is_padded_and_causal(seen: Any) -> bool:
    """Whether a mask (B, H, n, n) hides padding and later keys, and no others. Its last row shows the real tokens."""
    real, n = seen[:, :1, -1], seen.shape[-1]
    causal = seen.new_ones(n, n).tril() & real[..., None, :]
    alike = (seen[:, :, -1] == real).all()  # in all heads
    padding = ~real & real.any(-1, keepdim=True)
    return bool(alike & ((seen == causal).all(-1) | (seen.all(-1) & padding)).all())


def _is_band(seen: Any) -> bool:
    """Whether visibility depends on the distance of key and query alone, and the visible distances are consecutive."""
    if not bool((seen[..., 1:, 1:] == seen[..., :-1, :-1]).all()):
        return False
    by_distance = torch.cat([seen[..., :, 0].flip(-1), seen[..., 0, 1:]], dim=-1)
    changes = (by_distance[..., 1:] != by_distance[..., :-1]).sum(-1)
    return bool((changes <= 2).all() and (~by_distance[..., 0] | ~by_distance[..., -1]).all())


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call: softmax(scaling q k^T + mask) v, unless ``extra`` says otherwise.

    query (B, H, n, d), key (B, H, l, d), value (B, H, l, d_v): grouped heads are repeated, rotary positions applied.
    group: the number of adjacent query heads that share a key head.
    module, name: the caller, and its name in named_modules (for the model itself, its class). index: the number of the
    call, from 0: in the order of a forward pass, or of the first calls where parts are called separately.
    mask: (B or 1, H or 1, n, l), added to the logits, or None. kind: of the mask. extra: other keywords that may change
    the mathematics (soft caps, sinks, position biases). own: computes the model's own output, (B, H, n, d_v).
    crosses: the queries are of other tokens than the keys, also where there are as many of both: as the name of the
    module says, or two inputs of it that could both be tokens.
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
    group: int = 1
    crosses: bool = False

    @property
    def causal(self) -> bool:
        """Whether a query sees no key after it."""
        return "causal" in self.kind

    @property
    def padded(self) -> bool:
        """Whether some keys, or tokens, are padding."""
        return "padded" in self.kind


#: Computes the output of a call, (B, H, n, d_v).
Attend = Callable[[Call], Any]


class AttentionHook:
    """A callback for the attention calls of one model, and the state of the current forward pass."""

    def __init__(self, model: Any, attend: Attend) -> None:
        self.attend = attend
        self.names = {module: name for name, module in model.named_modules()}
        self.implementations = _implementations(model)
        #: Modules whose forward is running, innermost last, and whether two inputs have a batch of as many tokens.
        self.running: list[tuple[Any, bool]] = []
        #: Modules that ran, and those in which a call was intercepted.
        self.ran: set[Any] = set()
        self.heard: set[Any] = set()
        #: The number of each call of a module in a pass; in this pass, its calls so far, all modules that ran, and the
        #: outermost of them.
        self.numbers: dict[tuple[Any, int], int] = {}
        self.repeats: Counter[Any] = Counter()
        self.in_pass: set[Any] = set()
        self.outermost: set[Any] = set()
        self.answering = False
        self._kinds: list[tuple[Any, Any, Kind]] = []
        self._thread = threading.get_ident()

    def unheard(self) -> list[str]:
        """The names of modules that are called attention and ran, without a call that was intercepted."""
        silent = [self.names[module] for module in self.ran - self.heard if type(module).__name__.endswith("Attention")]
        return sorted(name for name in silent if not any(name.startswith(f"{other}.") for other in silent))

    def __reduce__(self) -> Any:
        """Refuse copies of the model, and files with it: they would hold the hooks for good."""
        raise ModelError("the attention of this model is replaced or captured: copy or save it outside that context")

    def answer(self, query: Any, key: Any, value: Any, mask: Any, module: Any, **rest: Any) -> Any:
        """Pass a call to the callback and return its output."""
        heads, times = query.shape[1], query.shape[1] // key.shape[1]
        if heads % key.shape[1] or heads % value.shape[1]:
            raise ModelError(f"{heads} query heads are not a multiple of {key.shape[1]} key heads")
        key, value = (a if a.shape[1] == heads else a.repeat_interleave(heads // a.shape[1], 1) for a in (key, value))
        name, kind = self.names.get(module) or type(module).__name__, self._kind(mask, query.shape[-2], key.shape[-2])
        crosses = bool(_CROSS.search(name)) or ("self" not in name.lower() and self.running[-1][1])
        index = self.numbers.setdefault((module, self.repeats[module]), len(self.numbers))
        call = Call(module, name, index, query, key, value, mask, kind, group=times, crosses=crosses, **rest)
        self.repeats[module] += 1
        self.answering = True
        self.heard.update(running for running, _ in self.running)
        try:
            output = self.attend(call)
        finally:
            self.answering = False
        expected = (*query.shape[:-1], value.shape[-1])
        if tuple(output.shape) != expected:
            raise ModelError(f"{name}: the attention given returned shape {tuple(output.shape)}, not {expected}")
        return output.to(query.dtype)

    def _kind(self, mask: Any, n: int, length: int) -> Kind:
        """The kind of a mask, determined once for the calls that share it.

        The last two masks are kept alive, because another mask could reuse the memory of a freed one.
        """
        if mask is None:
            return "full"
        if mask.is_inference():  # has no version
            return kind_of(mask, (n, length))
        identity = _identity(mask)
        for _, known, kind in self._kinds:
            if known == identity:
                return kind
        kind = kind_of(mask, (n, length))
        self._kinds = [(mask, identity, kind), *self._kinds[:1]]
        return kind

    def enter(self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Before a module's forward. An outermost one that ran in this pass, or whose part did, begins another.

        Other threads would compute the model's own attention.
        """
        if not self._is_here():
            raise ModelError(f"{type(module).__name__} runs in another thread: replace its attention in that thread")
        if torch._C._current_graph_task_id() >= 0 or _is_computed_again():  # the mode does not hold in there
            raise ModelError(f"{type(module).__name__} is computed again for gradients: call it without checkpoints")
        self.ran.add(module)
        if not self.running or module is self.running[0][0]:  # after an interrupt torch does not call `leave`
            self._kinds, self.running = [], []
            if module in self.in_pass or not self.outermost.isdisjoint(module.modules()):
                self.in_pass.clear()
                self.outermost.clear()
                self.repeats.clear()
            self.outermost.add(module)
        self.in_pass.add(module)
        given = (*arguments, *keywords.values())
        states = [a for a in given if isinstance(a, torch.Tensor) and a.ndim == 3 and a.is_floating_point()]
        if len({*map(id, states)}) < len(states):
            states = _queries_or_all(module, arguments, keywords, states)
        tokens = Counter(a.shape[:2] for a in {id(a): a for a in states}.values())
        batch = max((shape[0] for shape in tokens), default=0)  # tables of rotary positions have no batch
        outer = bool(self.running) and self.running[-1][1]  # a module that is given heads attends for the one around it
        several = any(count > 1 and shape[0] == batch for shape, count in tokens.items())
        self.running.append((module, several if tokens else outer))

    def leave(self, *_: Any) -> None:
        """After a module's forward, also if it failed."""
        if self._is_here() and self.running:  # `enter` may have refused it
            self.running.pop()

    def _is_here(self) -> bool:
        """Whether this is the context's thread, and no other task in it. asyncio.to_thread copies the hooks."""
        return threading.get_ident() == self._thread and self in _HOOKS.get()


def _queries_or_all(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], states: list[Any]) -> list[Any]:
    """The queries, if the keys are the same tensor, as in self-attention whose values have no positions; or all states.

    In the order of the signature, queries are the first input named q..., or neither k... nor v...; keys are the one
    named k..., or the one after the queries, rather than the residual in forward(tokens, memory, residual).
    """
    order = [*inspect.signature(module.forward).parameters]
    named = {**dict(zip((*order, *map(str, range(len(arguments)))), arguments, strict=False)), **keywords}
    names = [name for name in dict.fromkeys((*order, *named)) if any(named.get(name) is state for state in states)]
    query = min(names, key=lambda name: (name[:1].lower() in "kv") - (name[:1].lower() == "q"))
    after = names.index(query) + 1
    keys = [name for name in names if name[:1].lower() == "k"] or names[after : after + 1]
    return [named[query]] if any(named[key] is named[query] for key in keys) else states


def _is_computed_again() -> bool:
    """Whether a reentrant checkpoint of torch calls, which calls again for gradients, maybe after the context."""
    frame, checkpoint = sys._getframe(), torch.utils.checkpoint.CheckpointFunction.forward.__code__
    while not torch.is_grad_enabled() and (frame := frame.f_back):
        if frame.f_code is checkpoint:
            return any(frame.f_locals["ctx"].needs_input_grad)
    return False


def _identity(mask: Any) -> tuple[Any, ...]:
    """A key that is equal for tensors with the same values in the same memory."""
    return mask.data_ptr(), tuple(mask.shape), mask.stride(), mask.dtype, mask._version


def _functional_mode(hook: AttentionHook) -> Any:
    """A mode of torch in which scaled_dot_product_attention calls the hook."""
    attention = torch.nn.functional.scaled_dot_product_attention

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
            def own() -> Any:
                return function(*arguments, **keywords or {})

            if function is not attention or hook.answering:
                return own()
            if not hook.running:
                caller = sys._getframe(1).f_locals.get("self")
                if isinstance(caller, torch.nn.Module) and caller in hook.names:
                    raise ModelError(
                        f"{type(caller).__name__} computes attention outside a call of the module: call the module "
                        "itself, not its forward or another method, or one whose forward calls that method"
                    )
                return own()  # of another model
            return _answer_functional(hook, own, *arguments, **keywords or {})

        def __exit__(self, *_: Any) -> None:
            """Contexts may end in any order, where torch ends the last."""
            later = []
            while torch._C._len_torch_function_stack() and (mode := torch.overrides._pop_mode()) is not self:
                later.append(mode)
            for mode in reversed(later):
                torch.overrides._push_mode(mode)

    return Mode()


def _answer_functional(
    hook: AttentionHook, own: Callable[[], Any], query: Any, key: Any, value: Any, attn_mask: Any = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """scaled_dot_product_attention of (..., H, n, d): all axes before the heads are one batch.

    Axes of length 1 are repeated, as torch does; with enable_gqa, not those of heads.
    """
    last, given = 3 if enable_gqa else 2, [query, key, value]
    mask = attn_mask
    if is_causal:  # aligned at the top left, also where there are more keys than queries
        mask = query.new_ones(query.shape[-2], key.shape[-2]).tril().bool()
    if hasattr(mask, "_materialize"):  # of torch.nn.attention.bias, whose own numbers are not set
        mask = mask._materialize(query.device)
    mask = additive(mask, query)
    leading = torch.broadcast_shapes(*(a.shape[:-last] for a in given))
    query, key, value = (a.expand(*leading, *a.shape[-last:]) for a in given)
    if mask is not None:
        mask = mask.reshape(*(1,) * (3 - mask.ndim), *mask.shape)
        mask = mask.expand(*query.shape[:-3], *mask.shape[-3:]) if query.ndim > 4 else mask
        mask = _four_axes(mask)
    output = hook.answer(
        _four_axes(query), _four_axes(key), _four_axes(value), mask, hook.running[-1][0],
        scaling=query.shape[-1] ** -0.5 if scale is None else float(scale), extra={}, own=lambda: _four_axes(own()),
    )  # fmt: skip
    return output.reshape(*query.shape[:-1], value.shape[-1])


def _four_axes(array: Any) -> Any:
    """(..., n, d) as (batch, heads, n, d); missing axes are 1."""
    return array.reshape(-1, *(1,) * (3 - array.ndim), *array.shape[-3:])


def check_plain(model: Any) -> None:
    """Raise ModelError for a module that is compiled or quantised: its calls would be missed, or differ."""
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"a torch.nn.Module is needed, not {type(model).__name__}")
    for module in model.modules():
        home = type(module).__module__
        compiled = getattr(module, "_compiled_call_impl", None) is not None or home.startswith("torch._dynamo")
        if compiled or isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"{type(model).__name__} is compiled: pass it as it was before torch.compile (_orig_mod) or torch.jit"
            )
        if module.training and getattr(module, "gradient_checkpointing", False):
            raise ModelError(f"{type(model).__name__} computes layers twice: call its gradient_checkpointing_disable()")
        if home.startswith(("torch.ao.nn.", "bitsandbytes", "torchao", "auto_gptq", "awq")):
            raise ModelError(f"{type(model).__name__} is quantised ({type(module).__name__}): pass it unquantised")
    for name, parameter in model.named_parameters():  # modules of ordinary types may hold quantised weights
        home = type(parameter.data).__module__
        if parameter.is_meta:
            raise ModelError(f"{type(model).__name__} has no weights ({name} is on the meta device): load them first")
        numbers = parameter.is_floating_point() or parameter.is_complex()
        if not numbers or parameter.dtype.itemsize < 2 or home.startswith("torchao"):
            raise ModelError(f"{type(model).__name__} is quantised ({name} is {parameter.dtype}): pass it unquantised")


#: The name registered in transformers. Some models treat names that contain "sdpa" or "flash" specially.
NAME = "favorbench"

#: How the functions that compute a family's own attention are named in transformers, or end.
EAGER = "eager_attention_forward"

#: Keywords that change the formula of attention; error messages name them.
CHANGING = ("softcap", "s_aux", "position_bias")

#: Keywords that say which keys are attended. Families that choose keys leave their mask without that choice then.
CHOOSING = ("indices", "block_indices")

#: Why attention is left that neither transformers' interface nor torch's scaled_dot_product_attention computes.
HIDDEN = "no attention call was found"

#: Names of modules whose queries are of other tokens than their keys.
_CROSS = re.compile("cross|encoder_?attn|enc_?dec", re.IGNORECASE)

#: The hooks of this thread, and the modules of all threads whose attention is intercepted.
_HOOKS: ContextVar[tuple[AttentionHook, ...]] = ContextVar("favorbench_hooks", default=())
_INTERCEPTED: set[Any] = set()
_LOCK = threading.Lock()


@contextlib.contextmanager
def intercept_attention(model: Any, attend: Attend) -> Iterator[AttentionHook]:
    """Pass every attention call of a model to ``attend`` within a context; the model is unchanged afterwards.

    model: a torch module, of transformers or not. Raises ModelError for compiled and quantised modules, and at the end
    of the context if no call was intercepted; and inside another such context of this model.
    """
    check_plain(model)
    with _LOCK:
        if not _INTERCEPTED.isdisjoint(modules := set(model.modules())):
            raise ModelError(
                f"the attention of {type(model).__name__} is replaced or captured already: end that context first"
            )
        _INTERCEPTED.update(modules)
    try:
        yield from _intercepted(model, attend)
    finally:
        _INTERCEPTED.difference_update(modules)


def _intercepted(model: Any, attend: Attend) -> Iterator[AttentionHook]:
    hook = AttentionHook(model, attend)
    handles = [module.register_forward_pre_hook(hook.enter, with_kwargs=True) for module in hook.names]
    handles += [module.register_forward_hook(hook.leave, always_call=True) for module in hook.names]
    _HOOKS.set((hook, *_HOOKS.get()))
    try:
        if hook.implementations:
            _redirect(model)
        with _functional_mode(hook):
            yield hook
    finally:
        _HOOKS.set(tuple(other for other in _HOOKS.get() if other is not hook))  # contexts may end in any order
        for handle in handles:
            handle.remove()
        for config, implementation in hook.implementations.values():
            config._attn_implementation_internal = implementation
    if not hook.numbers:
        raise ModelError(f"{type(model).__name__}: no attention call was found: {_why_no_call(model, bool(hook.ran))}")


def warn_of_hidden(model: Any, hidden: list[str]) -> None:
    """Warn of attention that hides its calls beside others that do not."""
    if hidden:
        more = f" and {len(hidden) - 1} more" if hidden[1:] else ""
        warnings.warn(f"{type(model).__name__}: {HIDDEN} in {hidden[0]}{more}: left as in the model", stacklevel=3)


def observe_attention(model: Any, tokens: Any, look: Callable[[Call, Any], None]) -> list[str]:
    """Run the unchanged model on tokens, and show ``look`` each attention call with the output of it.

    Returns the names of attention that hides its calls.
    """

    def attend(call: Call) -> Any:
        output = call.own()
        look(call, output)
        return output

    with torch.no_grad(), intercept_attention(model, attend) as hook:
        model(tokens, use_cache=False)
    return hook.unheard()


def _implementations(model: Any) -> dict[int, tuple[Any, str | None]]:
    """The attention implementation of each configuration in a model, by id; empty without transformers.

    Raises ModelError for a function that a user has registered: ``own`` would compute another one.
    """
    if "transformers" not in sys.modules:
        return {}
    functions = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    waiting = [getattr(module, "config", None) for module in model.modules()]
    implementations: dict[int, tuple[Any, str | None]] = {}
    while waiting:
        config: Any = waiting.pop()
        if isinstance(config, transformers.PreTrainedConfig) and id(config) not in implementations:
            chosen = config._attn_implementation_internal
            function = functions.get(chosen, _attention)
            home = getattr(function, "func", function).__module__
            if not home.startswith(("transformers.", __name__)):
                raise ModelError(
                    f"{type(model).__name__} computes attention by {chosen!r}, not a function of transformers; "
                    "if it is softmax attention, call set_attn_implementation('sdpa') of the model"
                )
            implementations[id(config)] = config, chosen
            waiting += [getattr(config, key, None) for key in config.sub_configs]
    return implementations


def _redirect(model: Any) -> None:
    """Register our attention and mask functions in transformers, and select them in all its models inside a model.

    Without a registered mask function transformers drops masks silently.
    """
    transformers.AttentionInterface.register(NAME, _attention)
    transformers.AttentionMaskInterface.register(NAME, _mask)
    logger = transformers.utils.logging
    verbosity = logger.get_verbosity()
    logger.set_verbosity_error()  # our own error says more than its warning about families without the interface
    try:
        for module in model.modules():
            if isinstance(module, transformers.PreTrainedModel):
                module.set_attn_implementation(NAME)
    finally:
        logger.set_verbosity(verbosity)


def _mask(*arguments: Any, **keywords: Any) -> Any:
    """Return an additive mask, never None, which could mean full or causal attention."""
    eager_mask = import_module("transformers.masking_utils").eager_mask
    return eager_mask(*arguments, **keywords | {"allow_is_bidirectional_skip": False})


def _attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **keywords: Any) -> tuple[Any, Any]:
    """Attention as transformers calls it: key, value (B, G, l, d), G divides H; output (B, n, H, d_v), no weights.

    The names are those of its own functions, as some families pass all by name.
    """
    mask = attention_mask
    hook = next((hook for hook in _HOOKS.get() if module in hook.names), None)
    own, fused = _own_function(module, hook.implementations if hook else {}, keywords)
    if hook is None or hook.answering:
        return own(module, query, key, value, attention_mask, **keywords)
    if any(keywords.get(name) is not None for name in CHOOSING):
        raise ModelError(f"{type(module).__name__} chooses keys by itself: it cannot be captured or replaced")
    if mask is None and fused and query.shape[2] > 1:
        told = keywords.get("is_causal")
        if getattr(module, "is_causal", True) if told is None else told:
            mask = query.new_ones(query.shape[2], key.shape[2]).tril().bool()
    scaling = keywords.get("scaling")
    output = hook.answer(
        query, key, value, mask if mask is None else additive(mask, query)[..., : key.shape[-2]], module,
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        extra={name: keywords[name] for name in CHANGING if keywords.get(name) is not None},
        own=lambda: own(module, query, key, value, attention_mask, **keywords)[0].transpose(1, 2),
    )  # fmt: skip
    return output.transpose(1, 2).contiguous(), None


def _own_function(
    module: Any, implementations: dict[int, tuple[Any, str | None]], keywords: dict[str, Any]
) -> tuple[Callable[..., Any], bool]:
    """The model's own attention: torch's fused attention if the model used it, else its family's eager function.

    And whether it is fused, which without a mask is causal for modules that do not say otherwise.
    """
    homes = [sys.modules[kind.__module__] for kind in type(module).__mro__ if kind.__module__ in sys.modules]
    _, before = implementations.get(id(getattr(module, "config", None)), (None, None))
    if before == "sdpa" and keywords.get("softcap") is None:
        for home in homes:
            if hasattr(home, "ALL_ATTENTION_FUNCTIONS"):
                return home.ALL_ATTENTION_FUNCTIONS["sdpa"], True
    names = [name for name in inspect.unwrap(type(module).forward).__code__.co_names if name.endswith(EAGER)]
    for home in homes:
        if function := getattr(home, names[0] if names else EAGER, None):  # some families have several
            return function, False
    raise ModelError(f"{type(module).__name__} has no {EAGER} to compare with")


def _why_no_call(model: Any, entered: bool) -> str:
    """Explain why no attention call was found."""
    if not entered:
        return "it was not called"
    if "transformers" in sys.modules and isinstance(model, transformers.PreTrainedModel):
        if model.config._attn_implementation == "eager" and model._supports_sdpa:
            return "eager attention of this family hides its calls: load it with attn_implementation='sdpa'"
        return (
            f"in transformers {transformers.__version__} this family uses neither AttentionInterface "
            "nor torch's scaled_dot_product_attention"
        )
    return (
        "it does not call torch's scaled_dot_product_attention (nn.MultiheadAttention and nn.TransformerEncoder hide "
        "theirs; timm: set_fused_attn(True) before create_model)"
    )
