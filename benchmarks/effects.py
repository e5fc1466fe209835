"""Predicted and measured effects of replaced attention: of single heads, single layers and the whole model.

    python -m benchmarks.effects minilm texts/*.txt -L 256 --sizes 16,32,64
    python -m benchmarks.effects smollm2 texts/*.txt -L 256 --sizes 16,32,64 --heads 90

For each text and size of ``sinks(4):multipole`` (one draw, the same in both): the rank correlations of predicted and
measured effects over heads and over layers, and the ratio of predicted to measured effect of the whole model.
Controls: relative errors in place of predictions, gradients of the next text, predictions of other heads.
"""

import argparse
import functools
import sys
from collections.abc import Collection
from functools import partial
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from favorbench.models import torch
from favorbench.models.effects import effect, head_effects, head_errors, run
from favorbench.models.gradients import gradient_draws
from favorbench.models.load import split_texts
from favorbench.models.plan import ModelScenario
from favorbench.models.replacements import LayerHeads, Replacement, Tensor, replacement
from favorbench.models.study import MeasuredModel
from favorbench.models.swap import replace_calls, stream_names
from favorbench.numerics.streams import stream

GRADIENTS = 16


@functools.lru_cache(maxsize=2)
def gradients(model: MeasuredModel, text: str) -> dict[int, Tensor]:
    """Gradients of a text, by layer (draws, B, heads, n, d_v)."""
    forward = partial(model.model, model.texts[text].tokens, use_cache=False)
    numbers = [layer.index for layer in model.replaceable]
    parts = list(gradient_draws(model.model, forward, numbers, GRADIENTS, stream(0, "gradients"))[1])
    return {layer: torch.stack([part[layer] for part in parts]) for layer in numbers}


class Comparison:
    """The effects of one setting on one text. Arrays over heads are in the order of the layers."""

    def __init__(self, model: MeasuredModel, text: str, estimator: Replacement) -> None:
        self.model, self.text, self.estimator = model, text, estimator
        self.tokens, self.layers = model.texts[text].tokens, model.layers[text]
        self.kind = "kl" if model.loaded.causal else "embedding_loss"

    def _outputs(self, heads: LayerHeads) -> Tensor:
        return self.estimator.outputs(heads, 0, stream_names("layer", 0, heads.layer))

    def predicted(self, gradients_of: str) -> np.ndarray:
        """The predicted effect of each head, with the gradients of a text of the same length."""
        return head_effects(self.model.model, self.tokens, gradients(self.model, gradients_of), [self._outputs])[0]

    def relative_errors(self) -> np.ndarray:
        """The relative error of each head."""
        results = head_errors(self.model.model, self.model.reference(self.text), self.layers, self._outputs)
        return np.array([error.head_error for error in results])

    def measured(self, layers: Collection[int] | None = None, heads: Collection[int] | None = None) -> float:
        """The effect on the model where only these are replaced."""
        with replace_calls(self.model.model, self.estimator, layers, heads, "layer", 0, 0):
            output = run(self.model.model, self.tokens)
        return float(getattr(effect(self.model.reference(self.text), output), self.kind))

    def row(self, other: str, most: int) -> dict[str, float]:
        """The correlations and ratios. other: the text of the control's gradients. most: of single heads, at random."""
        predicted, wrong, errors = self.predicted(self.text), self.predicted(other), self.relative_errors()
        numbers = [layer.index for layer in self.model.replaceable]
        layer_of = np.repeat(numbers, [layer.heads for layer in self.layers if layer.left is None])

        def by_layer(values: np.ndarray) -> np.ndarray:
            return np.array([values[layer_of == layer].sum() for layer in numbers])

        whole, layers = self.measured(), [self.measured([layer]) for layer in numbers]
        values_by_name = {
            "measured": whole, "predicted / measured": predicted.sum() / whole,
            "gradients of another text / measured": wrong.sum() / whole,
            "layers": spearmanr(by_layer(predicted), layers)[0],
            "layers, relative error": spearmanr(by_layer(errors**2), layers)[0],
        }  # fmt: skip
        if most:
            numbers = np.array([head for layer in self.layers if layer.left is None for head in range(layer.heads)])
            chosen = np.sort(stream(0, "heads").permutation(len(numbers))[:most])
            heads = [self.measured([int(layer_of[i])], [int(numbers[i])]) for i in chosen]
            predicted, wrong, errors = predicted[chosen], wrong[chosen], errors[chosen]
            shuffled = stream(0, "shuffled").permutation(predicted)
            controls = {"": predicted, ", gradients of another text": wrong, ", relative error": errors}
            for name, values in (controls | {", shuffled": shuffled}).items():
                values_by_name[f"heads{name}"] = spearmanr(values, heads)[0]
            values_by_name["factor of the median head"] = float(np.exp(np.median(np.abs(np.log(predicted / heads)))))
        return values_by_name


def main() -> int:
    """Print a row for each text and size; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.effects", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("-L", "--length", type=int, default=256)
    parser.add_argument("--sizes", default="16,32,64")
    parser.add_argument("--heads", type=int, default=1000, help="single heads, at random; 0: none (default: 1000)")
    options = parser.parse_args()
    texts = tuple(map(str, options.texts))
    scenario = ModelScenario(options.model, texts, options.length, (), (), (), (1,), 1, heads=False)
    model = MeasuredModel(scenario, False, split_texts)
    first = [text for text in model.texts if text.endswith("#0")]
    for number, text in enumerate(first):
        for size in map(int, options.sizes.split(",")):
            comparison = Comparison(model, text, replacement("sinks(4):multipole", size))
            row = comparison.row(first[(number + 1) % len(first)], options.heads)
            if not (number or size != int(options.sizes.split(",")[0])):
                print("| text | m |", " | ".join(row), "|\n|" + " --- |" * (2 + len(row)))
            print(f"| {text} | {size} |", " | ".join(f"{value:.3g}" for value in row.values()), "|", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
