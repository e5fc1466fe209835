"""Queries, keys and values of a model's attention, as it makes them of real inputs, for ``--inputs FILE``."""

import contextlib
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from favorbench.errors import InputError, ScenarioError
from favorbench.files import clear_errors, read_regular
from favorbench.formats import shown
from favorbench.models.interface import attending, check_plain
from favorbench.models.load import (
    Loaded,
    check_installed,
    is_function,
    load,
    memory_errors,
    module_digest,
    read_texts,
    versions,
)
from favorbench.models.recorder import Captured, Choice, Recorder, Run, check_path
from favorbench.models.spool import Spool
from favorbench.numerics.machine import check_memory
from favorbench.progress import Progress
from favorbench.users import failures_named

LENGTH = 512  # tokens


def capture(
    model: Any, inputs: Any, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None,
    last: int | None = None, dtype: str = "float32",
) -> Captured:  # fmt: skip
    """The heads of a torch module on its inputs; it is called without gradients, in eval mode, and left as it was.

    inputs: what it is called with: a tensor, a tuple, or a mapping of keywords; a list of these for several texts. Each
    item of a batch is a text of its own. layers, heads: numbers, in the order of calls. last: of causal layers, only so
    many queries, on all the keys before them. Raises ModelError where nothing can be captured, and ScenarioError.

    >>> import favorbench as fb, torch
    >>> class Attention(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.nn.functional.scaled_dot_product_attention(x, x, x)
    >>> x = torch.randn(1, 2, 16, 4)  # (batch, heads, L, d)
    >>> captured = fb.capture(Attention(), x)
    >>> captured.query.shape
    (2, 16, 4)

    ``captured.save("mine.npz")`` writes a file for ``favorbench sweep --inputs``; fb.sweep(inputs={"mine": captured})
    and fb.recommend(captured) take it as it is.
    """
    check_installed("torch")
    check_plain(model)
    choice = Choice(None if layers is None else tuple(layers), None if heads is None else tuple(heads), last, dtype)
    about = {"model": type(model).__name__, "weights_sha256": module_digest(model), "versions": versions()}
    with Spool() as spool:
        return record(model, runs_of(model, inputs), choice, about, spool)


def capture_file(
    name: str, texts: Sequence[str | Path], out: Path, choice: Choice, length: int | None = None, *,
    trust_remote_code: bool = False, progress: Progress | None = None,
) -> Captured:  # fmt: skip
    """Load a model, capture its heads on texts (or on the inputs that ``module:function`` brings), and write them.

    length: tokens of each text at most, LENGTH by default or the model's limit. What can be wrong is looked at first.
    """
    check_path(out, choice.dtype)
    if not texts and not is_function(name):
        raise ScenarioError(f"{name} reads texts: give `text` FILE")
    for path in texts:
        read_regular(path, "text")
    check_installed()
    with clear_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with Spool(out.parent) as spool:
        loaded = load(name, trust_remote_code=trust_remote_code)
        captured = record(loaded.model, _runs(loaded, texts, length), choice, of_loaded(loaded), spool, progress)
    captured.save(out)
    return captured


def _runs(loaded: Loaded, texts: Sequence[str | Path], length: int | None) -> list[Run]:
    """Forward passes over texts, or over what a function brought along."""
    if loaded.inputs is not None:
        if texts or length is not None:
            raise ScenarioError(f"{loaded.name} brings its inputs along: leave `text` and `length` out")
        return [run._replace(forward=_named(loaded.name, run)) for run in runs_of(loaded.model, loaded.inputs)]
    runs = text_runs(loaded, texts, min(LENGTH, loaded.limit or LENGTH) if length is None else length)
    _check_memory(loaded.model, runs[0].tokens)
    return runs


def _named(name: str, run: Run) -> Callable[[], Any]:
    """The pass of a user's model, whose failure is the user's: EstimatorError. Lack of memory stays what it is."""

    def forward() -> Any:
        with failures_named(f"model {shown(name)} on its inputs"), memory_errors():
            return run.forward()

    return forward


def _check_memory(model: Any, length: int) -> None:
    """Raise ScenarioError where masks (16 bytes for each pair of tokens) or eager attention's weights do not fit."""
    config = model.config
    heads = getattr(config, "num_attention_heads", 1) if config._attn_implementation == "eager" else 0
    check_memory((16.0 + 12.0 * heads) * length**2, f"attention of {length} tokens", "use a smaller `length`")


def runs_of(model: Any, inputs: Any) -> list[Run]:
    """One forward pass for each input: a tensor, a tuple, a mapping of keywords, or a list of these.

    Raises InputError for anything else: models read tensors, not words or paths.
    """
    given = inputs if isinstance(inputs, list) else [inputs]
    tensor = import_module("torch").Tensor
    for one in given or [None]:
        if not isinstance(one, tensor | tuple | Mapping):
            raise InputError(
                f"inputs: a tensor, a tuple, a mapping of keywords, or a list of these is needed, not {shown(one)}; of "
                "a text they are tokenizer(text, return_tensors='pt')"
            )
    return [Run(f"input{i}", _digest(one), 0, lambda one=one: _called(model, one)) for i, one in enumerate(given)]


def text_runs(loaded: Loaded, paths: Sequence[str | Path], length: int) -> list[Run]:
    """One forward pass for each text, all of the length of the shortest, at most ``length`` tokens."""
    texts = read_texts(loaded, paths, length)
    shortest = min(text.tokens.shape[1] for text in texts)
    return [Run(text.name, text.sha256, shortest, _reading(loaded.model, text.tokens[:, :shortest])) for text in texts]


def of_loaded(loaded: Loaded) -> dict[str, Any]:
    """What a file says of the model that its heads are of."""
    return {"model": loaded.name, "weights_sha256": loaded.weights, "versions": loaded.versions}


def record(
    model: Any, runs: Sequence[Run], choice: Choice, about: Mapping[str, Any], spool: Spool,
    progress: Progress | None = None,
) -> Captured:  # fmt: skip
    """The heads of all runs; spool: where they are kept. Raises ModelError if there is none to keep."""
    torch, recorder = import_module("torch"), Recorder(choice, spool)
    with _eval_mode(model), torch.no_grad(), memory_errors():
        for done, run in enumerate(runs):
            if progress:
                progress(done, len(runs), run.name)
            recorder.begin(run)
            with attending(model, recorder.attend):
                run.forward()
            recorder.check_layers()
    return recorder.captured(type(model).__name__, about)


def _called(model: Any, given: Any) -> Any:
    """The model called with a mapping of keywords, a tuple of arguments, or one argument."""
    if isinstance(given, Mapping):
        return model(**given)
    return model(*given) if isinstance(given, tuple) else model(given)


def _reading(model: Any, tokens: Any) -> Callable[[], Any]:
    """The model reading tokens: without its head, whose output of (L, vocabulary) nobody needs, and without a cache."""
    base = model.base_model
    parameters = inspect.signature(base.forward).parameters
    rest = {"use_cache": False} if "use_cache" in parameters else {}
    if getattr(base.config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        rest["decoder_input_ids"] = tokens
    return lambda: base(input_ids=tokens, **rest)


def _digest(given: Any) -> str:
    """The sha256 of the numbers of an input."""
    digest = hashlib.sha256()
    for name, item in sorted(given.items()) if isinstance(given, Mapping) else [("", given)]:
        for tensor in item if isinstance(item, tuple) else [item]:
            digest.update(name.encode())
            digest.update(tensor.cpu().numpy().tobytes() if hasattr(tensor, "cpu") else repr(tensor).encode())
    return digest.hexdigest()


@contextlib.contextmanager
def _eval_mode(model: Any) -> Iterator[None]:
    """Without dropout; afterwards each module is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
