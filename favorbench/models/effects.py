"""What a model with its attention replaced answers, against the same model as it is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from favorbench.methods.base import Shape
from favorbench.models.interface import Call, attending
from favorbench.models.replacements import LayerHeads, Tensor, exact_multiplications
from favorbench.models.swap import estimates, heads_of, why_not

ROWS = 256  # positions whose logits over the vocabulary are treated together


class Reference(NamedTuple):
    """The model as it is on one text: hidden states (L, width), at the input and after each layer, on the host's
    precision; logits (L, vocabulary) of a language model; the embedding, mean over tokens of the last hidden state."""

    tokens: Tensor
    hidden: tuple[Tensor, ...]
    logits: Tensor | None
    embedding: Tensor

    def as_float(self) -> "Reference":
        """In float32, of a model in another precision."""
        logits = None if self.logits is None else self.logits.float()
        return self._replace(hidden=tuple(state.float() for state in self.hidden), logits=logits)


class Effect(NamedTuple):
    """Effects on one text; what does not apply is None. Infinite where an output is no number.

    hidden_error: after each layer, mean over tokens of |h' - h| / |h|. nonfinite: share of the last hidden states that
    are no numbers. embedding: mean over tokens of the last hidden state. embedding_loss: 1 - its cosine to the exact.
    kl: KL(exact || replaced) of the next token, mean over positions, in nats; delta_nll: change of the negative log
    likelihood of the text, nats per token; top1: share of positions with the same most likely token. late_...: over the
    second half of the text.
    """

    hidden_error: tuple[float, ...]
    nonfinite: float
    embedding: tuple[float, ...]
    embedding_loss: float
    kl: float | None = None
    delta_nll: float | None = None
    top1: float | None = None
    late_kl: float | None = None
    late_delta_nll: float | None = None


class HeadError(NamedTuple):
    """One head under exact inputs. relative_error: |estimate - exact|_F / |exact|_F of its output; after_projection:
    |W_O (estimate - exact)| / |h|, mean over tokens, with h the hidden state that the layer adds to, None where W_O or
    h are not found."""

    layer: int
    head: int
    relative_error: float
    after_projection: float | None


def run(model: Any, tokens: Tensor) -> Reference:
    """What the model answers to tokens (1, L)."""
    torch = import_module("torch")
    with torch.no_grad():
        found = model(tokens, output_hidden_states=True, use_cache=False)
    hidden = tuple(state[0] for state in found.hidden_states)
    logits = getattr(found, "logits", None)
    last = getattr(found, "last_hidden_state", None)
    last = hidden[-1] if last is None else last[0]
    return Reference(tokens[0], hidden, None if logits is None else logits[0], last.double().mean(dim=0))


def effect(reference: Reference, found: Reference) -> Effect:
    """What a replacement does on one text. Bias and rounding of the sums are those of float64."""
    torch = import_module("torch")
    errors = tuple(_relative(a, b) for a, b in zip(reference.hidden[1:], found.hidden[1:], strict=True))
    nonfinite = float((~torch.isfinite(found.hidden[-1])).double().mean())
    cosine = torch.nn.functional.cosine_similarity(reference.embedding, found.embedding, dim=0)
    same = torch.equal(reference.embedding, found.embedding)
    loss = 0.0 if same else max(_finite(1.0 - float(cosine)), 0.0)
    embedding = tuple(float(x) for x in found.embedding)
    if reference.logits is None or found.logits is None:
        return Effect(errors, nonfinite, embedding, loss)
    return Effect(errors, nonfinite, embedding, loss, *_of_next_token(reference, found))


def _of_next_token(reference: Reference, found: Reference) -> tuple[float, ...]:
    """kl, delta_nll, top1, late_kl, late_delta_nll."""
    assert reference.logits is not None and found.logits is not None
    torch = import_module("torch")
    length = len(reference.tokens)
    each = torch.empty((3, length), dtype=torch.float64)
    for start in range(0, length, ROWS):
        rows = slice(start, start + ROWS)
        exact, other = (torch.log_softmax(logits[rows].float(), dim=-1) for logits in (reference.logits, found.logits))
        each[0, rows] = (exact.exp() * (exact - other)).sum(dim=-1)
        each[2, rows] = (exact.argmax(dim=-1) == other.argmax(dim=-1)).double()
        following = reference.tokens[start + 1 : start + 1 + ROWS, None]
        count = len(following)
        each[1, start : start + count] = (exact - other)[:count].gather(-1, following)[:, 0]
    half = length // 2
    kl, gained, same = each[0], each[1, :-1], each[2]
    means = [kl.mean(), gained.mean(), same.mean(), kl[half:].mean(), gained[half:].mean()]
    return tuple(_finite(float(mean)) for mean in means)


def _relative(exact: Tensor, other: Tensor) -> float:
    exact, other = exact.double(), other.double()
    return _finite(float(((other - exact).norm(dim=-1) / exact.norm(dim=-1)).mean()))


def _finite(value: float) -> float:
    return value if np.isfinite(value) else np.inf


@dataclass(frozen=True)
class ModelLayer:
    """An attention of the model on one text: what costs follow from, its heads, why it cannot be replaced (None where
    it can), and the module that projects its output."""

    index: int
    name: str
    shape: Shape
    heads: int
    left: str | None
    projection: Any

    @property
    def multiplications(self) -> float:
        """Of exact attention in all its heads."""
        return self.heads * exact_multiplications(self.shape)


def layers_of(model: Any, tokens: Tensor) -> tuple[ModelLayer, ...]:
    """The attentions of a model, in the order of their calls. The projection of the output, W_O, is the first module
    that is given that output; found by what goes in, as no two families give it the same name."""
    torch = import_module("torch")
    found: dict[int, ModelLayer] = {}
    waiting: list[tuple[int, Tensor]] = []

    def attend(call: Call) -> Tensor:
        output = call.own()
        shape = heads_of(call).shape
        found.setdefault(call.index, ModelLayer(call.index, call.name, shape, call.query.shape[1], why_not(call), None))
        waiting[:] = [(call.index, output.transpose(1, 2).flatten(2))]
        return output

    def before(module: Any, given: tuple[Any, ...]) -> None:
        if not waiting or not given or any(module.children()):
            return
        index, output = waiting[0]
        if isinstance(given[0], torch.Tensor) and given[0].shape == output.shape and torch.equal(given[0], output):
            found[index] = replace(found[index], projection=module)
            waiting.clear()

    hooks = [module.register_forward_pre_hook(before) for module in model.modules()]
    try:
        with torch.no_grad(), attending(model, attend):
            model(tokens, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(found[index] for index in sorted(found))


def head_errors(
    model: Any, reference: Reference, layers: tuple[ModelLayer, ...], outputs: Callable[[LayerHeads, int], Tensor]
) -> list[HeadError]:
    """The error of each head of each layer where all inputs are exact; outputs: of the heads of a layer, by number."""
    torch = import_module("torch")
    found: list[HeadError] = []
    of_index = {layer.index: layer for layer in layers}

    def attend(call: Call) -> Tensor:
        own = call.own()
        if why_not(call) is None:
            estimate = estimates(call, lambda heads: outputs(heads, call.index))
            found.extend(_of_heads(of_index[call.index], estimate - own, own, _added_to(reference, call.index, layers)))
        return own

    with torch.no_grad(), attending(model, attend):
        model(reference.tokens[None], use_cache=False)
    return found


def _added_to(reference: Reference, index: int, layers: tuple[ModelLayer, ...]) -> Tensor | None:
    """The hidden state that a layer adds to; None where layers and hidden states are not one for one."""
    return reference.hidden[index] if len(reference.hidden) == len(layers) + 1 else None


def _of_heads(layer: ModelLayer, error: Tensor, own: Tensor, hidden: Tensor | None) -> Iterator[HeadError]:
    after = [None] * error.shape[1] if hidden is None else _after_projection(layer, error, hidden)
    for head, projected in enumerate(after):
        one, exact = error[0, head].double(), own[0, head].double()
        yield HeadError(layer.index, head, _finite(float(one.norm() / exact.norm())), projected)


def _after_projection(layer: ModelLayer, error: Tensor, hidden: Tensor) -> list[float | None]:
    """|W_O error| / |h| for each head alone, mean over tokens."""
    if layer.projection is None:
        return [None] * error.shape[1]
    found, scale = [], hidden.double().norm(dim=-1)
    bias = layer.projection(error.new_zeros((1, 1, error.shape[1] * error.shape[-1])))
    for head in range(error.shape[1]):
        alone = error.new_zeros(error.shape)
        alone[:, head] = error[:, head]
        effect = layer.projection(alone.transpose(1, 2).flatten(2)) - bias
        found.append(_finite(float((effect[0].double().norm(dim=-1) / scale).mean())))
    return found
