"""Which weights a model has: the files they are in, and digests of them."""

import hashlib
import json
from pathlib import Path
from typing import Any

from favorbench.errors import ModelError
from favorbench.files import open_regular


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
