"""The effects of replaced attention: the outputs of a model against those of the unchanged model."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from favorbench.attention.problem import Shape, exact_multiplications
from favorbench.models import torch
from favorbench.models.interface import HIDDEN, Call, observe_attention
from favorbench.models.replacements import Exact, LayerHeads, Replacement, Tensor, total
from favorbench.models.swap import estimates, heads_of, unsupported_reason, without_padding

#: The output for heads.
Estimate = Callable[[LayerHeads], Tensor]

ROWS = 16  # positions in a batch of logits: a few MB at large vocabularies, in cache


class Reference(NamedTuple):
    """The output of a model for one text.

    hidden: states (L, width) at the input and after each layer. logits (L, vocabulary) of a language model. embedding:
    the mean over tokens of the last hidden state.
    """

    tokens: Tensor
    hidden: tuple[Tensor, ...]
    logits: Tensor | None
    embedding: Tensor


class Effect(NamedTuple):
    """Effects on one text; None where they do not apply, infinite where an output is NaN or infinite.

    hidden_error: after each layer, mean over tokens of |h' - h| / |h|. nonfinite: share of the last hidden states that
    are NaN or infinite. embedding: mean over tokens of the last hidden state. embedding_loss: 1 - cosine of the
    embeddings. kl: KL(exact || replaced) of the next token, mean over positions, in nats; delta_nll: change of the
    negative log likelihood of the text, nats per token; top1: share of positions with the same most likely token.
    late_...: over the second half of the text.
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
    """The error of one head under exact inputs; the fields are columns of the store.

    head_error: |estimate - exact|_F / |exact|_F of its output. head_after_projection: |W_O (estimate - exact)| / |h|,
    mean over tokens, with h the hidden state that the layer adds to; None if W_O or h is unknown.
    """

    head_layer: int
    head_number: int
    head_error: float
    head_after_projection: float | None


def run(model: Any, tokens: Tensor) -> Reference:
    """The output of a model for tokens (1, L)."""
    with torch.no_grad():
        output = model(tokens, output_hidden_states=True, use_cache=False)
    hidden, logits = tuple(map(_states, output.hidden_states)), getattr(output, "logits", None)
    last = _states(getattr(output, "last_hidden_state", output.hidden_states[-1]))
    return Reference(tokens[0], hidden, None if logits is None else logits[0], last.double().mean(dim=0))


def _states(hidden: Tensor) -> Tensor:
    """The states of the only item of a batch (1, L, width); of (streams, 1, L, width), as in Gemma 3n, the first."""
    return hidden[0, 0] if hidden.ndim == 4 and hidden.shape[1] == 1 else hidden[0]


def effect(reference: Reference, replaced: Reference) -> Effect:
    """The effect of a replacement on one text, summed in float64."""
    pairs = zip(reference.hidden[1:], replaced.hidden[1:], strict=True)
    errors = tuple(_mean(_norms(b.double() - a.double()) / _norms(a)) for a, b in pairs)
    cosine = torch.nn.functional.cosine_similarity(reference.embedding, replaced.embedding, dim=0)
    same = torch.equal(reference.embedding, replaced.embedding)
    return Effect(
        errors, float((~torch.isfinite(replaced.hidden[-1])).double().mean()), tuple(replaced.embedding.tolist()),
        0.0 if same else max(_mean(1.0 - cosine), 0.0), *_next_token_effects(reference, replaced),
    )  # fmt: skip


def _next_token_effects(reference: Reference, replaced: Reference) -> tuple[float | None, ...]:
    """kl, delta_nll, top1, late_kl and late_delta_nll; None where no next token is known, () without logits."""
    if reference.logits is None or replaced.logits is None:
        return ()
    length = len(reference.logits)
    kl, lost, same = torch.zeros((3, length), dtype=torch.float64)
    for start in range(0, length, ROWS):
        rows = slice(start, start + ROWS)
        exact, other = (
            torch.log_softmax(logits[rows].float(), dim=-1) for logits in (reference.logits, replaced.logits)
        )
        terms = exact.exp() * (exact - other)
        kl[rows] = terms.masked_fill(exact == -torch.inf, 0).sum(dim=-1)  # classes that the model masks
        same[rows] = (exact.argmax(dim=-1) == other.argmax(dim=-1)).double()
        following = reference.tokens[start + 1 : start + 1 + ROWS, None]
        count = len(following)
        lost[start : start + count] = (exact - other)[:count].gather(-1, following)[:, 0]
    half, lost = length // 2, lost[:-1] if len(reference.tokens) == length else lost[:0]  # inputs that are no tokens
    return tuple(_mean(part) if len(part) else None for part in (kl, lost, same, kl[half:], lost[half:]))


def _norms(rows: Tensor) -> Tensor:
    return rows.double().norm(dim=-1)


def _mean(values: Tensor) -> float:
    """The mean; infinite where it is NaN."""
    mean = float(values.mean())
    return mean if np.isfinite(mean) else np.inf


@dataclass(frozen=True)
class ModelLayer:
    """One attention layer of the model on one text.

    shape: of one head. heads: of each item of the batch. left: why the layer cannot be replaced, None if it can.
    projection: the module that projects its output. parts: the shapes of the items of a padded batch without padding.
    """

    index: int
    name: str
    shape: Shape
    heads: int
    left: str | None
    projection: Any
    batch: int = 1
    parts: tuple[Shape, ...] = ()

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of what is computed, one for each item of the batch: padding is not."""
        return self.parts or (self.shape,) * self.batch

    @property
    def queries(self) -> int:
        """The number of queries that are not padding, of all items."""
        return sum(shape.n for shape in self.shapes)

    @property
    def multiplications(self) -> float:
        """Multiplications of exact attention in all its heads."""
        return self.heads * sum(map(exact_multiplications, self.shapes))

    def work(self, replacement: Replacement, heads: int | None = None) -> float | None:
        """Multiplications of a replacement in all its heads, or in some; None if unknown."""
        return total(replacement.work(shape, heads or self.heads, self.index) for shape in self.shapes)


def layers_of(model: Any, tokens: Tensor) -> tuple[ModelLayer, ...]:
    """The attention layers of a model, in the order of their calls; then those that hide theirs, of 0 heads.

    The output projection W_O is the first module with parameters that receives the output; its name differs between
    model families. It is unknown where that is not a matrix, as a norm before it.
    """
    layers: dict[int, ModelLayer] = {}
    pending: list[tuple[int, Tensor]] = []

    def look(call: Call, output: Tensor) -> None:
        (batch, heads), shape, reason = call.query.shape[:2], heads_of(call).shape, unsupported_reason(call)
        parts = tuple(part.shape for *_, part in without_padding(call)) if call.padded else ()
        layers.setdefault(call.index, ModelLayer(call.index, call.name, shape, heads, reason, None, batch, parts))
        pending[:] = [(call.index, output.transpose(1, 2).flatten(2))]

    def find_projection(module: Any, inputs: tuple[Any, ...]) -> None:
        weight = getattr(module, "weight", None)  # dropout has none
        if not pending or not inputs or weight is None or any(module.children()):
            return
        index, output = pending[0]
        if isinstance(inputs[0], torch.Tensor) and inputs[0].shape == output.shape and torch.equal(inputs[0], output):
            layers[index] = replace(layers[index], projection=module if weight.ndim == 2 else None)
            pending.clear()

    with contextlib.ExitStack() as hooks:
        for module in model.modules():
            hooks.callback(module.register_forward_pre_hook(find_projection).remove)
        hidden = observe_attention(model, tokens, look)
    heard = [layers[index] for index in sorted(layers)]
    nothing = Shape(0, 0, 0, 0)
    return *heard, *(ModelLayer(i, name, nothing, 0, HIDDEN, None) for i, name in enumerate(hidden, len(heard)))


def head_errors(model: Any, reference: Reference, layers: Sequence[ModelLayer], outputs: Estimate) -> list[HeadError]:
    """The error of each head of each layer that is not left, under exact inputs; outputs: the estimate."""
    errors: list[HeadError] = []
    projections = {layer.index: layer.projection for layer in layers if layer.left is None}
    heard = sum(layer.heads > 0 for layer in layers)

    def look(call: Call, exact: Tensor) -> None:
        if call.index in projections:
            exact = _without_padding(call, exact)
            error = estimates(call, outputs) - exact
            size, whole = (part.double().square().sum(dim=(0, -2, -1)).sqrt() for part in (error, exact))
            relative = torch.where(size == 0, 0.0, size / whole)  # an estimate of 0 is exact where a head is pruned
            # Layers and hidden states may not correspond one to one.
            hidden = reference.hidden[call.index] if len(reference.hidden) == heard + 1 else None
            after = _after_projection(projections[call.index], error, hidden)
            errors.extend(
                HeadError(call.index, head, _mean(relative[head]), after_projection)
                for head, after_projection in enumerate(after)
            )

    observe_attention(model, reference.tokens[None], look)
    return errors


def head_effects(
    model: Any, tokens: Tensor, gradients: Mapping[int, Tensor], estimators: Sequence[Estimate]
) -> np.ndarray:
    """The predicted effect of each estimator on each head alone (estimators, heads), in the order of layers.

    gradients: by layer (draws, B, H, n, d_v), as in ``gradients.py``; the effect is the mean of (g . error)^2 / 2, the
    product summed over the items of a batch.
    """
    effects: dict[int, list[np.ndarray]] = {}

    def look(call: Call, exact: Tensor) -> None:
        if call.index in gradients:
            effects[call.index], exact = [], _without_padding(call, exact)
            for outputs in estimators:
                error = estimates(call, outputs) - exact
                products = torch.einsum("rbhnd,bhnd->rh", gradients[call.index], error).double()
                effects[call.index].append((products**2).mean(dim=0).cpu().numpy() / 2)

    observe_attention(model, tokens, look)
    return np.concatenate([np.stack(effects[layer]) for layer in sorted(effects)], axis=1)


def _without_padding(call: Call, exact: Tensor) -> Tensor:
    """The exact output of a call, with 0 for padding, as ``estimates`` has it."""
    if not call.padded:
        return exact
    return estimates(call, lambda heads: Exact().outputs(heads, 0, ()))


def _after_projection(projection: Any, error: Tensor, hidden: Tensor | None) -> list[float | None]:
    """|W_O error| / |h| for each head alone, mean over tokens; None if W_O or h is unknown."""
    if projection is None or hidden is None:
        return [None] * error.shape[1]
    errors: list[float | None] = []
    bias = projection(error.new_zeros((1, 1, error.shape[1] * error.shape[-1])))
    for head in range(error.shape[1]):
        alone = error.new_zeros(error.shape)
        alone[:, head] = error[:, head]
        projected = projection(alone.transpose(1, 2).flatten(2)) - bias
        errors.append(_mean(_norms(projected[0]) / _norms(hidden)))
    return errors
