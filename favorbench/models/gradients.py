"""Gradients of a model's output with respect to the outputs of its heads, for the metric ``effect``.

An error delta of a head's output changes a language model by KL(exact || replaced) = 1/2 E (g . delta)^2 to second
order, g the gradient of sum_t log p(y_t) with y_t sampled from the model's own prediction (Fisher information). It
changes an embedding e by 1 - cosine = 1/2 E (g . delta)^2, g the gradient of r . e/|e| with r standard normal.
"""

import contextlib
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from favorbench.errors import ModelError, ScenarioError
from favorbench.formats import format_bytes
from favorbench.inputs.stored import GRADIENTS
from favorbench.models import torch
from favorbench.models.captured import Captured
from favorbench.models.interface import Call, intercept_attention
from favorbench.models.recorder import Recorder, Run
from favorbench.models.replacements import Tensor
from favorbench.numerics.machine import check_memory
from favorbench.numerics.streams import stream

ROWS = 256  # positions in a batch of sampled predictions

#: Values per token, layer and unit of width that a backward pass stores; observed: 15 to 20 in MiniLM and SmolLM2.
KEPT_VALUES = 20


def part_of(output: Any, name: str) -> Any:
    """A part of a model's output, which may be a dict of them; None without it."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def objective(output: Any, draws: int, rng: np.random.Generator) -> tuple[str, Tensor, Iterator[Tensor]]:
    """The unit of the effect, the part of a model's output to differentiate, and a direction in it for each draw.

    The part is the next token if there are logits, else the mean of the last hidden state. The next draw may overwrite
    a direction. Raises ModelError for other outputs.
    """
    logits, hidden = part_of(output, "logits"), part_of(output, "last_hidden_state")
    if isinstance(logits, torch.Tensor) and logits.ndim in (2, 3):
        if logits.shape[-1] < 2:
            raise ModelError(
                "`gradients`: the model returns one logit for each position, whose softmax never changes: return two "
                "or more, such as (0, score), or leave `gradients` out"
            )
        positions = 1 if logits.ndim == 2 else logits.shape[1]
        unit = "nats per token" if logits.ndim == 3 else "nats"
        rows = logits.flatten(0, -2)
        return unit, rows, _sampled(rows.detach(), draws, positions**-0.5, rng)
    if isinstance(hidden, torch.Tensor) and hidden.ndim == 3:
        embedding = torch.nn.functional.normalize(hidden.double().mean(1), dim=-1)  # orthogonal to its derivatives
        shape, device = tuple(embedding.shape), embedding.device
        normals = (torch.as_tensor(rng.standard_normal(shape), device=device) for _ in range(draws))
        return "1 - cosine", embedding, normals
    raise ModelError(
        f"`gradients`: the model returns {type(output).__name__}; allowed: logits (batch, classes) or (batch, "
        "positions, classes), or last_hidden_state (batch, positions, width), by attribute or in a dict; or "
        "leave `gradients` out"
    )


def _sampled(logits: Tensor, draws: int, factor: float, rng: np.random.Generator) -> Iterator[Tensor]:
    """Yield for each draw the gradient of factor * sum_t log p(y_t) to logits (rows, vocabulary), y_t drawn from p."""
    uniform = torch.as_tensor(rng.random((len(logits), draws)), device=logits.device)
    direction, drawn = torch.empty_like(logits), []
    for start in range(0, len(logits), ROWS):
        rows = slice(start, start + ROWS)
        shares = torch.softmax(logits[rows].double(), -1)
        direction[rows] = -factor * shares
        drawn.append(torch.searchsorted(shares.cumsum_(-1), uniform[rows]).clamp_(max=logits.shape[-1] - 1))
    tokens = torch.cat(drawn)
    for draw in range(draws):
        chosen = tokens[:, draw : draw + 1]
        before = direction.gather(-1, chosen)
        yield direction.scatter_(-1, chosen, before + factor)
        direction.scatter_(-1, chosen, before)


def gradient_draws(
    model: Any, forward: Callable[[], Any], layers: Collection[int], draws: int, rng: np.random.Generator
) -> tuple[str, Iterator[dict[int, Tensor]]]:
    """The unit of the effect, and for each draw the gradients with respect to outputs of layers (B, H, n, d_v)."""
    probes: dict[int, Tensor] = {}

    def attend(call: Call) -> Tensor:
        output = call.own()
        if call.index in layers:
            probes[call.index] = torch.zeros_like(output, requires_grad=True)
            return output + probes[call.index]
        return output

    with torch.inference_mode(False), _frozen(model), torch.enable_grad(), intercept_attention(model, attend):
        unit, result, directions = objective(forward(), draws, rng)
    if not result.requires_grad:
        raise ModelError("`gradients`: no gradient of the model's output reaches its heads: leave `gradients` out")
    inputs = list(probes.values())
    grad = partial(torch.autograd.grad, result, inputs, retain_graph=True, materialize_grads=True)
    return unit, (dict(zip(probes, grad(direction), strict=True)) for direction in directions)


def dimensions(model: Any) -> Iterator[int]:
    """The width, the number of layers and the size of the vocabulary of a transformers model; 0 where unknown."""
    names, config = ("hidden_size", "num_hidden_layers", "vocab_size"), getattr(model, "config", None)
    config = getattr(config, "text_config", config)  # of a model that reads images, too
    return (getattr(config, name, 0) for name in names)


def check_backward_memory(model: Any, batch: int, length: int, more: float = 0.0) -> None:
    """Raise ScenarioError if memory is too small for a backward pass through a text and ``more`` bytes."""
    width, layers, vocabulary = dimensions(model)
    if width:
        needed = more + 4.0 * batch * length * (KEPT_VALUES * width * (layers or 1) + 3 * vocabulary)
        check_memory(needed, f"a gradient through {length} tokens", "use a smaller `length`")


class GradientRecorder:
    """Store gradients with respect to the heads that a recorder has stored. scales: one array for each run."""

    def __init__(self, recorder: Recorder, notice: Callable[[str], None] | None) -> None:
        self.recorder, self.spool, self.notice = recorder, recorder.spool, notice
        self.unit, self.scales = "", list[np.ndarray]()

    def record(self, model: Any, run: Run, runs: int, progress: Callable[[int], None]) -> None:
        """Store the gradients of the heads stored in a run. runs: the number of runs, to estimate the total size."""
        choice, kept = self.recorder.choice, self.recorder.kept
        draws, count = choice.gradients or 0, sum(kept.values())
        if not count:
            return
        if not self.scales:
            self._check_size(model, count * runs * draws)
        rng = stream(0, "gradients", run.sha256)
        self.unit, gradients = gradient_draws(model, run.forward, kept, draws, rng)
        scales, first = np.ones((count, draws), np.float32), sum(map(len, self.scales))
        for draw, by_layer in enumerate(gradients):
            progress(draw)
            place = 0
            for gradient in by_layer.values():
                heads = list(choice.heads or range(gradient.shape[1]))
                rows = gradient[:, heads].flatten(0, 1).float().cpu().numpy()
                here = slice(place, place := place + len(rows))
                size = np.abs(rows).max(axis=(1, 2))
                scales[here, draw] = np.where(size > 0, size, 1.0)
                self.spool.put_gradients(first + here.start, draws, draw, rows / scales[here, draw, None, None])
        self.scales.append(scales)

    def added_to(self, captured: Captured) -> Captured:
        """Captured heads with the gradients."""
        scales, value = np.concatenate(self.scales), captured.value
        rows = captured.query.shape[1]
        stored = self.spool.array(GRADIENTS, (*scales.shape, rows, value.shape[-1]), "float16")
        return replace(captured, gradients=stored, gradient_scales=scales, meta=captured.meta | {"effect": self.unit})

    def _check_size(self, model: Any, count: int) -> None:
        """Report the size of all gradients before any is computed. Raises ScenarioError if it is too large."""
        recorder = self.recorder
        assert recorder.shape is not None
        rows = recorder.shape.n
        size = 2.0 * count * rows * recorder.shape.d_v
        arrays = f"{count} gradients of {rows} x {recorder.shape.d_v} numbers"
        folder = Path(self.spool.folder)
        if 2 * size > (free := shutil.disk_usage(folder).free):
            raise ScenarioError(
                f"{arrays} need {format_bytes(2 * size)} in {folder} while they are written, and {format_bytes(free)} "
                "are free: use fewer `gradients`, `layers` or `heads`"
            )
        check_backward_memory(model, recorder.shape.batch, recorder.shape.n)
        if self.notice:
            self.notice(f"{arrays}, float16: {format_bytes(size)} of the file")


@contextlib.contextmanager
def _frozen(model: Any) -> Iterator[None]:
    """Disable the gradients of parameters within a context: only those of the heads' outputs are needed."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
