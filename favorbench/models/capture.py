"""Capture queries, keys and values of a model's attention on real inputs, for ``--inputs FILE``."""

import contextlib
import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from favorbench.errors import InputError, ModelError, ScenarioError, StoreError
from favorbench.files import clear_errors
from favorbench.formats import shown
from favorbench.inputs.stored import open_contents
from favorbench.models import torch
from favorbench.models.captured import Captured, Spool, check_path
from favorbench.models.gradients import GradientRecorder, part_of
from favorbench.models.interface import check_plain, intercept_attention, warn_of_hidden
from favorbench.models.load import (
    Loaded,
    Text,
    TextFile,
    check_installed,
    is_function,
    load,
    memory_errors,
    module_digest,
    read_texts,
    tokenise,
    versions,
    warn_of_tokenizer,
    warn_of_unknown,
)
from favorbench.models.plan import LENGTH
from favorbench.models.recorder import Choice, Recorder, Run
from favorbench.numerics.arrays import on_host
from favorbench.numerics.machine import check_memory
from favorbench.parameters import whole_numbers
from favorbench.progress import Progress
from favorbench.users import failures_named


def capture(
    model: Any, inputs: Any, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None,
    last: int | None = None, dtype: str = "float32", gradients: int | None = None,
) -> Captured:  # fmt: skip
    """Capture the attention heads of a torch module on its inputs.

    The module is called in eval mode and left unchanged. A warning names what is left out: layers that are not softmax
    attention, and inputs of another length than the first.

    Parameters
    ----------
    model
        A torch module that is neither compiled nor quantised.
    inputs
        The argument of the module: a tensor, a tuple of arguments, or a mapping of keywords; or a list of these, one
        for each text. Each item of a batch counts as a text, or as a head where attention is called with three axes,
        (batch, L, d).
    layers, heads
        Numbers of the layers and heads to keep, by default all. Layers are numbered in the order of their calls.
    last
        Keep only this many queries of causal layers, the last ones, and the keys before all of them: not the model's
        own attention, in which queries see the keys among the last ones, too.
    dtype
        The precision of the stored arrays: "float32", "float16" or "bfloat16".
    gradients
        Also keep this many gradients of the model's output with respect to the output of each head, such as 16. Sweeps
        then have the metric ``effect``.

    Returns
    -------
    Captured
        The heads. ``captured.save("mine.npz")`` writes a file for ``favorbench sweep --inputs``.
        ``fb.sweep(inputs={"mine": captured})`` and ``fb.recommend(captured)`` take it directly.

    Raises
    ------
    ModelError
        No attention call can be captured.
    InputError
        The inputs of the model cannot be used.
    ScenarioError
        An argument is wrong.

    Examples
    --------
    >>> import favorbench as fb, torch
    >>> class Attention(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.nn.functional.scaled_dot_product_attention(x, x, x)
    >>> x = torch.randn(1, 2, 16, 4)  # (batch, heads, L, d)
    >>> captured = fb.capture(Attention(), x)
    >>> captured.query.shape
    (2, 16, 4)
    """
    check_installed("torch")
    check_plain(model)
    choice = Choice(whole_numbers("`layers`", layers), whole_numbers("`heads`", heads), last, dtype, gradients)
    if () in (choice.layers, choice.heads):
        raise ScenarioError("`layers` or `heads` is an empty list, of which nothing is captured: leave it out for all")
    loaded = Loaded(model, None, type(model).__name__, module_digest(model), False, versions=versions())
    with Spool() as spool:
        captured = record(loaded, input_runs(model, inputs), choice, spool)
    if refusals := [layer.refusal for layer in captured.layers if layer.refusal]:
        more = f"; and {len(refusals) - 1} more (see `layers`)" if refusals[1:] else ""
        warnings.warn(f"{loaded.name}: {refusals[0]}{more}", stacklevel=2)
    return captured


def capture_file(
    name: str, texts: Sequence[str | Path], out: Path, choice: Choice, length: int | None = None, *,
    trust_remote_code: bool = False, progress: Progress | None = None, notice: Callable[[str], None] | None = None,
) -> Captured:  # fmt: skip
    """Load a model, capture its heads on texts (or on the inputs that ``module:function`` returns), and write them.

    length: the maximum number of tokens per text, by default LENGTH or the model's limit. notice: receives a message
    with the size of the gradients before they are computed. Arguments are validated first.
    """
    check_path(out, choice.dtype)
    _refuse_others(out)
    if not texts and not is_function(name):
        raise ScenarioError(
            f"{name} reads texts: give `text` FILE; if it reads images or sound, give module:function, which returns "
            "(model, inputs)"
        )
    files = read_texts(texts)
    check_installed()
    with clear_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with Spool(out.parent) as spool:
        loaded = load(name, trust_remote_code=trust_remote_code)
        if choice.gradients:
            loaded.warn_of_output()
        if loaded.inputs is None:
            runs = text_runs(loaded, files, length, head=choice.gradients is not None)
        else:
            if texts or length is not None:
                raise ScenarioError(f"{name} returns its own inputs: leave `text` and `length` out")
            runs = input_runs(loaded.model, loaded.inputs, name)
        captured = record(loaded, runs, choice, spool, progress, notice)
    captured.save(out)
    return captured


def _refuse_others(path: Path) -> None:
    """Raise StoreError for a file, such as a model's weights, that was not captured."""
    about = None
    if path.is_file() or path.is_dir():
        with contextlib.suppress(InputError):
            about = open_contents(str(path)).about
        if '"favorbench"' not in (about or ""):  # in its versions
            raise StoreError(f"{path} is there and was not written by favorbench capture; give `out` another name")


def input_runs(model: Any, inputs: Any, name: str = "") -> list[Run]:
    """One forward pass for each input: a tensor, a tuple, a mapping of keywords, or a list of these.

    name: of a user's model, whose failures become EstimatorErrors. Raises InputError for other inputs, such as strings.
    """
    given = inputs if isinstance(inputs, list) else [inputs]
    for item in given or [None]:
        if not isinstance(item, torch.Tensor | tuple | Mapping):
            raise InputError(
                f"inputs: a tensor, a tuple, a mapping of keywords, or a list of these is needed, not {shown(item)}; "
                "for a text: tokenizer(text, return_tensors='pt')"
            )
    call = partial(_call_named, model, name) if name else partial(_call, model)
    like = next(filter(torch.is_floating_point, model.parameters()), None) if name else None
    if like is not None:  # `load` has made it float32
        given = [_mapped(partial(_like, like), item) for item in given]
    return [Run(f"input{i}", _digest(item), 0, partial(call, item)) for i, item in enumerate(given)]


def text_runs(loaded: Loaded, files: Sequence[TextFile], length: int | None = None, head: bool = False) -> list[Run]:
    """One forward pass for each text. All are cut to the length of the shortest, at most ``length`` tokens.

    head: whether to run the language model head, which computes logits (L, vocabulary).
    """
    warn_of_tokenizer(loaded, files)
    texts = tokenise(loaded, files, min(LENGTH, loaded.limit or LENGTH) if length is None else length)
    shortest = min(text.tokens.shape[1] for text in texts)
    texts = tokenise(loaded, files, shortest)  # again: the token that closes a text is to close those that are cut, too
    warn_of_unknown(loaded, texts)
    base = loaded.model if head else loaded.model.base_model
    config, parameters = base.config, inspect.signature(base.forward).parameters
    # Masks take 16 bytes for each pair of tokens, and eager attention stores its weights.
    heads = getattr(config, "num_attention_heads", 1) if config._attn_implementation == "eager" else 0
    check_memory((16.0 + 12.0 * heads) * shortest**2, f"attention of {shortest} tokens", "use a smaller `length`")
    rest = {"use_cache": False} if "use_cache" in parameters else {}
    runs = []
    for text in texts:
        tokens = text.tokens
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
            rest["decoder_input_ids"] = tokens
        given = {"input_ids": tokens, **rest}
        runs.append(Run(text.name, text.sha256, shortest, partial(_call_named, base, loaded.name, given)))
    return runs


def record(
    loaded: Loaded, runs: Sequence[Run], choice: Choice, spool: Spool, progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
) -> Captured:  # fmt: skip
    """Capture the heads of all runs. spool: stores them on disk. Raises ModelError if no head can be captured."""
    model = loaded.model
    recorder, modes = Recorder(choice, spool), [(module, module.training) for module in model.modules()]
    gradients, passes = GradientRecorder(recorder, notice), 1 + (choice.gradients or 0)

    def report(done: int, name: str, draw: int) -> None:
        if progress:
            progress(passes * done + draw, passes * len(runs), name)

    model.eval()  # without dropout
    try:
        with torch.no_grad(), memory_errors():
            for done, run in enumerate(runs):
                report(done, run.name, 0)
                recorder.begin(run)
                with intercept_attention(model, recorder.attend) as hook:
                    run.forward()
                if not done:
                    warn_of_hidden(model, hook.unheard())
                recorder.check_layers()
                if choice.gradients:
                    gradients.record(model, run, len(runs), partial(report, done, run.name))
    finally:
        for module, mode in modes:
            module.training = mode
    about = {"model": loaded.name, "weights_sha256": loaded.weights, "versions": loaded.versions}
    captured = recorder.captured(type(model).__name__, about)
    return gradients.added_to(captured) if choice.gradients else captured


def over_inputs(loaded: Loaded) -> tuple[Any, list[Text]]:
    """Wrap the model of ``module:function``: it is called with the number (1, 1) of an input. Also return the numbers.

    The output has last_hidden_state, and logits if the module returns them. A tensor counts as a hidden state. Padding
    is left out.
    """
    runs = input_runs(loaded.model, loaded.inputs, loaded.name)
    given = loaded.inputs if isinstance(loaded.inputs, list) else [loaded.inputs]
    shapes = {str(_mapped(lambda value: tuple(getattr(value, "shape", ())), item)) for item in given}
    if len(shapes) > 1:
        raise InputError(f"{loaded.name}: its inputs have several shapes; run the command for each shape separately")
    first: dict[str, int] = {}
    for i, run in enumerate(runs):
        if (twin := first.setdefault(run.sha256, i)) != i:
            raise InputError(
                f"{loaded.name}: input {i} equals input {twin}, and would count as another: return it once"
            )

    class OverInputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = loaded.model

        def forward(self, number: Any, **_: Any) -> Any:
            like = next(filter(torch.is_floating_point, self.parameters()), number.float())
            item = _mapped(partial(_like, like), given[int(number)])
            output = _call_named(self.module, loaded.name, item)
            logits, states = part_of(output, "logits"), part_of(output, "last_hidden_state")
            states = states if states is not None else output if logits is None else logits
            if not isinstance(states, torch.Tensor) or not isinstance(logits, torch.Tensor | None):
                raise ModelError(
                    f"{loaded.name} returns {type(output).__name__}; allowed: a tensor, or logits or last_hidden_state "
                    "that are tensors, by attribute or in a dict"
                )
            if logits is not None and logits.ndim > 3:
                raise ModelError(
                    f"{loaded.name} returns logits of {logits.ndim} axes; allowed: (batch, classes) or (batch, "
                    "positions, classes)"
                )
            if states is logits:
                states = states.masked_fill(states == -torch.inf, 0)  # of classes that the model masks
            states, logits = (
                part if part is None else part.reshape(1, -1, part.shape[-1] if 0 < part.ndim < 4 else part.numel())
                for part in (_without_padding(self.module, item, states), _without_padding(self.module, item, logits))
            )
            if min(part.shape[-1] for part in (states, logits) if part is not None) < 2:
                raise ModelError(
                    f"{loaded.name} returns one value for each position, whose softmax and cosine never change: return "
                    "two logits or more, such as (0, score), or wider states"
                )
            if logits is not None:
                logits = logits.clone()  # the next call may write into the same tensor
            return SimpleNamespace(hidden_states=(states,), last_hidden_state=states, logits=logits)

    OverInputs.__name__ = type(loaded.model).__name__  # errors name the user's class
    return OverInputs(), [Text(f"inputs#{i}", run.sha256, torch.tensor([[i]])) for i, run in enumerate(runs)]


def _without_padding(module: Any, given: Any, part: Any) -> Any:
    """The positions of an output that the attention_mask of its input does not declare as padding (0)."""
    if isinstance(given, tuple):
        given = dict(zip(inspect.signature(module.forward).parameters, given, strict=False))
    decoder = "decoder_" * getattr(getattr(module, "config", None), "is_encoder_decoder", False)
    mask = given.get(f"{decoder}attention_mask") if isinstance(given, Mapping) else None
    if part is None or part.ndim != 3 or getattr(mask, "shape", None) != part.shape[:2]:
        return part
    return part[mask != 0]


def _mapped(change: Callable[[Any], Any], given: Any) -> Any:
    """An input with ``change`` applied to each of its values."""
    if isinstance(given, Mapping):
        return {name: change(value) for name, value in given.items()}
    return tuple(map(change, given)) if isinstance(given, tuple) else change(given)


def _like(parameter: Any, value: Any) -> Any:
    """A tensor moved to the device of the model, and to its precision if floating-point; other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(parameter) if value.is_floating_point() else value.to(parameter.device)


def _call(model: Any, given: Any) -> Any:
    """Call the model with copies, which it may change, of a mapping of keywords, a tuple, or one argument."""
    given = _mapped(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, given)
    if isinstance(given, Mapping):
        return model(**given)
    return model(*given) if isinstance(given, tuple) else model(given)


def _call_named(model: Any, name: str, given: Any) -> Any:
    """Like ``_call``: failures of the model become EstimatorErrors that name it."""
    with failures_named(f"model {shown(name)} on its inputs"), memory_errors():
        return _call(model, given)


def _digest(given: Any) -> str:
    """The sha256 of the values of an input."""
    digest = hashlib.sha256()
    for name, value in _leaves(given):
        digest.update(name.encode())
        digest.update(on_host(value).tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())
    return digest.hexdigest()


def _leaves(given: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of an input, however nested, with the names of their keywords."""
    if isinstance(given, Mapping):
        for key, item in sorted(given.items()):
            yield from _leaves(item, str(key))
    elif isinstance(given, tuple | list):
        for item in given:
            yield from _leaves(item, name)
    else:
        yield name, given
