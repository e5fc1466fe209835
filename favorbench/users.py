"""What users bring: objects of their own modules, imported and held to our interfaces."""

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any

from favorbench.errors import EstimatorError, FavorbenchError, ScenarioError
from favorbench.formats import shown


def import_object(kind: str, path: str) -> Any:
    """The object at "module:attribute", with the working directory importable meanwhile. Raises ScenarioError."""
    module_name, _, attribute = path.partition(":")
    try:
        with importable_from(os.getcwd()):
            return getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # a user's module may fail in any way; the user is told which
        raise ScenarioError(f"{kind} {shown(path)} cannot be imported: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def importable_from(folder: str) -> Iterator[None]:
    """A folder first among those of modules: a console script has its own there, and a worker not the user's."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the module has taken it out itself
            sys.path.remove(folder)


def keep_importable_here() -> None:
    """The same for the rest of this process, for what users' modules import later: only for processes of our own.

    Last among those of modules, so that a file of the user's takes no library's name.
    """
    with contextlib.suppress(OSError):  # the directory is gone
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())


def check_methods(kind: str, spec: str, member: type, base: type) -> None:
    """Raise ScenarioError for a method of a user's class that cannot be called as those of ``base`` are.

    Names of parameters are the user's own affair, but where they are ours they must stand in our places.
    """
    for name, ours in inspect.getmembers(base, inspect.isfunction):
        theirs = getattr(member, name)
        if name.startswith("_") or theirs is ours or not inspect.isfunction(theirs):
            continue
        wanted, given = inspect.signature(ours), inspect.signature(theirs)
        places = {parameter: i for i, parameter in enumerate(given.parameters)}
        moved = any(places.get(parameter, i) != i for i, parameter in enumerate(wanted.parameters))
        try:
            given.bind(*wanted.parameters)
        except TypeError:
            moved = True
        if moved:
            ask, found = (f"{name}({', '.join(signature.parameters)})" for signature in (wanted, given))
            raise ScenarioError(f"{kind} {shown(spec)}: write `def {ask}`, not `def {found}`")


@contextlib.contextmanager
def failures_named(who: str) -> Iterator[None]:
    """A user's map, sampler or baseline may fail in any way: raise EstimatorError that says which, and how."""
    try:
        yield
    except (MemoryError, FavorbenchError):
        raise
    except (Exception, SystemExit) as error:  # a function that calls sys.exit() ends neither a sweep nor a worker
        if type(error).__name__ == "OutOfMemoryError":  # of torch, on a GPU
            raise MemoryError("on the GPU: use a smaller `batch`") from None
        raise EstimatorError(f"{who} failed: {type(error).__name__}: {error}") from error
