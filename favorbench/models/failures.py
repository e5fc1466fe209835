"""Failures of torch and transformers, in one line each."""

import contextlib
import io
import logging
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from favorbench.errors import FavorbenchError, ModelError
from favorbench.formats import shown
from favorbench.models.packaged import ALLOWED, PACKAGED


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
