"""Names to objects: ``positive``, ``positive-eps(eps=1e-6)``, ``my_module:MyMap`` or ``my_module:MyMap(width=2)``."""

import ast
import dataclasses
import difflib
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from favorbench.errors import ScenarioError

_SPEC = re.compile(r"\s*([\w.:-]+?)\s*(?:\((.*)\))?\s*", re.DOTALL)


Member = TypeVar("Member")


def nearest(name: str, allowed: Iterable[str]) -> str:
    """ " (did you mean 'x'?)" for the closest allowed name, or nothing."""
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def split_list(text: str) -> list[str]:
    """Split at the commas outside parentheses: ``"a,b(x=1,y=2)"`` -> ``["a", "b(x=1,y=2)"]``."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text)]


def build(kind: str, spec: str, members: Iterable[type[Any]], base: type[Member]) -> Member:
    """The object that ``spec`` names: a member of the registry, or any importable ``module:object``.

    Raises ScenarioError, naming what was given, what is allowed and the nearest name.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise ScenarioError(f"{spec!r} is not a valid {kind}: write name, name(parameter=value) or module:object")
    name, arguments = match.groups()
    by_name = {member.name: member for member in members}
    if ":" in name:
        found = import_object(kind, name)
    elif name in by_name:
        found = by_name[name]
    else:
        raise ScenarioError(
            f"unknown {kind} {name!r}{nearest(name, by_name)}; allowed: {', '.join(by_name)}, or module:object"
        )
    if isinstance(found, type):
        found = _constructed(kind, spec, found, arguments)
    elif arguments is not None:
        raise ScenarioError(f"{kind} {spec!r}: {name!r} is already built and takes no parameters")
    named = isinstance(getattr(found, "name", None), str) and found.name
    if not (isinstance(found, base) and dataclasses.is_dataclass(found) and named):
        raise ScenarioError(
            f"{kind} {spec!r} is a {type(found).__name__}; it must be a frozen dataclass derived from "
            f"favorbench.{base.__name__}, with a name"
        )
    return found


def _constructed(kind: str, spec: str, member: type, arguments: str | None) -> Any:
    try:
        call = ast.parse(f"f({arguments or ''})", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        assert len({word.arg for word in call.keywords}) == len(call.keywords)
        parameters = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        raise ScenarioError(f"{kind} {spec!r}: write parameters as name(parameter=value, ...)") from None
    try:
        return member(**parameters)
    except Exception as error:  # a user's class may fail in any way
        raise ScenarioError(f"{kind} {spec!r}: {error}") from error


def import_object(kind: str, path: str) -> Any:
    """The object at "module:attribute", with the working directory importable. Raises ScenarioError."""
    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:  # a console script has its own folder there, not the user's
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # a user's module may fail in any way; the user is told which
        raise ScenarioError(f"{kind} {path!r} cannot be imported: {type(error).__name__}: {error}") from error


def source_digest(spec: str) -> str | None:
    """SHA-256 of the source of a user's module, so that a run notices when it changes; None for our own members."""
    if ":" not in spec:
        return None
    file = getattr(importlib.import_module(spec.partition(":")[0].strip()), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None


def label(member: Any) -> str:
    """The canonical spelling of a map or sampler: its name, and the parameters that are not at their default."""
    name: str = member.name
    values = [(field, getattr(member, field.name)) for field in dataclasses.fields(member) if field.init]
    changed = [f"{field.name}={value!r}" for field, value in values if value != field.default]
    return f"{name}({', '.join(changed)})" if changed else name
