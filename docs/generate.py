"""The reference: a page for each command, from its declaration; the Python API and the formulas, from docstrings."""

import contextlib
import inspect
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import typer
from sphinx.ext.napoleon import Config, NumpyDocstring

import favorbench as fb
from favorbench.baselines import BASELINES
from favorbench.cli import app
from favorbench.inputs import INPUTS
from favorbench.maps import TRANSFORMS as MAP_TRANSFORMS
from favorbench.methods import PREFIXES
from favorbench.metrics import METRICS
from favorbench.samplers import TRANSFORMS as SAMPLER_TRANSFORMS
from favorbench.studies.kernel.targets import KERNELS

RESULTS = Path(__file__).resolve().parent.parent / "results"

FUNCTIONS = {  # by what they are for; what is not here stands under "Also"
    "Sweeps and decisions": ("sweep", "load", "Results", "recommend", "Recommendation", "compare", "RunComparison"),
    "Estimates of attention": (
        "exact_attention", "linear_attention", "method_attention", "kernel_estimate", "sample_omega",
    ),
    "Models": ("capture", "replace_attention"),
    "Names to objects": ("get_map", "get_method", "get_sampler", "get_baseline", "calibrate"),
    "Scenarios": ("Scenario", "load_scenario"),
    "Errors": (
        "FavorbenchError", "ScenarioError", "InputError", "StoreError", "ModelError", "EstimatorError", "WorkerError",
    ),
    "For estimators of your own": (
        "FeatureMap", "Features", "Sample", "exponential_target", "half_squared_norm", "Sampler", "Method",
        "AttentionProblem", "Estimate", "Baseline",
    ),
}  # fmt: skip


def write(folder: Path) -> None:
    """All generated pages, anew."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "commands").mkdir(parents=True)
    (folder / "formulas").mkdir()
    _commands(folder / "commands")
    (folder / "api.rst").write_text(_api(), encoding="utf-8")
    for name, title, members in (
        ("maps", "Feature maps", (*fb.MAPS, *MAP_TRANSFORMS)),
        ("methods", "Methods", (*fb.METHODS, *PREFIXES)),
        ("samplers", "Samplers", (*fb.SAMPLERS, *SAMPLER_TRANSFORMS)),
        ("baselines", "Baselines and bounds", BASELINES),
        ("inputs", "Inputs", INPUTS),
        ("kernels", "Kernels", KERNELS),
    ):
        (folder / "formulas" / f"{name}.rst").write_text(_members(title, members), encoding="utf-8")
    (folder / "formulas" / "metrics.rst").write_text(_metrics(), encoding="utf-8")
    for table in RESULTS.rglob("*.md"):
        page = folder / "results" / table.relative_to(RESULTS)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("---\norphan: true\n---\n\n" + table.read_text(encoding="utf-8"), encoding="utf-8")


def as_rst(text: str) -> str:
    """Plain text as reStructuredText: only backquotes keep their meaning."""
    parts = re.split(r"(``.+?``)", re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text))
    return "".join(part if part.startswith("``") else re.sub(r"([\\*|_`]|^[+-](?= ))", r"\\\1", part) for part in parts)


def link_results(app, docname: str, source: list[str]) -> None:
    """Tables of committed runs are pages of their own: what is a link in the repository is one here, too."""
    source[0] = re.sub(r"\]\(\.\./(results/[^)]+\.md)\)", r"](_generated/\1)", source[0])


def plain_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """For autodoc: the description of each parameter becomes an item of a list."""
    try:
        names = list(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        names = []
    lines[:] = _docstring("\n".join(lines), names).splitlines()


def _docstring(text: str, names: Iterable[str] = ()) -> str:
    """A docstring: paragraphs, then numpydoc sections as lists of fields."""
    text = inspect.cleandoc(text)
    section = re.search(r"^\w+\n-{3,}$", text, flags=re.MULTILINE)
    start = section.start() if section else len(text)
    return f"{_paragraphs(text[:start], names)}\n\n{_numpydoc(text[start:])}"


def _numpydoc(text: str) -> str:
    """Numpydoc sections as reStructuredText; examples are shown as they are."""
    escaped, example = [], False
    for line in text.splitlines():
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>> "))
        indent = line[: len(line) - len(line.lstrip())]
        escaped.append(line if example or re.fullmatch(r"-{3,}", line) else indent + as_rst(line.lstrip()))
    return str(NumpyDocstring(escaped, Config(napoleon_use_rtype=False)))


def _paragraphs(text: str, names: Iterable[str] = ()) -> str:
    """Paragraphs of plain text. Indented ones, such as drawings and examples, are shown as they are."""
    shown = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        if re.match(r"    |>>> ", paragraph):
            body = paragraph if paragraph.startswith(" ") else re.sub("^", "    ", paragraph, flags=re.MULTILINE)
            shown.append(f"::\n\n{body}")
        elif re.match(r"\* ", paragraph):
            shown.append(_items(re.split(r"^\* ", paragraph, flags=re.MULTILINE)[1:]))
        elif re.search(r"\n {2,}", paragraph):  # lines set by hand
            shown.append("\n".join(f"| {as_rst(line)}" for line in paragraph.splitlines()))
        else:
            shown.append(_parameters(paragraph, names))
    return "\n\n".join(shown)


def _parameters(paragraph: str, names: Iterable[str]) -> str:
    """A paragraph, with an item for each sentence that begins "name: ", and "Raises" after them."""
    starts = "|".join([*(rf"{re.escape(name)}(?:, \w+)*: " for name in names), "Raises "])
    parts = re.split(rf"(?:^|(?<=[.;)]))\s*(?=(?:{starts}))", " ".join(paragraph.split()))
    named = [part for part in parts if re.match(starts, part) and not part.startswith("Raises ")]
    if not named:
        return as_rst(paragraph)
    before = [part for part in parts[: parts.index(named[0])] if part]
    after = [part for part in parts if part.startswith("Raises ")]
    items = [re.sub(r"^([\w, ]+): ", r"``\1``: ", part) for part in named]
    return "\n\n".join([*map(as_rst, before), _items(items), *map(as_rst, after)])


def _items(items: Iterable[str]) -> str:
    return "\n".join("* " + as_rst(" ".join(item.split())) for item in items)


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n\n"


class _Sections(dict[str, list[tuple[str, str]]]):
    """What a command writes its --help into: the headings, and the lists of names and words below them."""

    width = 1000  # of a line: words are cut nowhere

    @contextlib.contextmanager
    def section(self, heading: str) -> Iterator[None]:
        self.heading = heading
        yield

    def write_dl(self, records: Iterable[tuple[str, str]]) -> None:
        self[self.heading] = list(records)


def _commands(folder: Path) -> None:
    group = typer.main.get_group(app)
    headings = _Sections()
    group.format_commands(group.make_context("favorbench", [], resilient_parsing=True), headings)
    text = _title("Commands")
    for heading, records in headings.items():
        text += _title(heading, "-")
        text += "".join(f"* :doc:`favorbench {name} <{name}>`: {as_rst(words)}\n" for name, words in records) + "\n"
    text += ".. toctree::\n   :hidden:\n\n" + "".join(f"   {name}\n" for name in group.commands)
    (folder / "index.rst").write_text(text, encoding="utf-8")
    for name, command in group.commands.items():
        (folder / f"{name}.rst").write_text(_command(name, command), encoding="utf-8")


def _command(name: str, command) -> str:
    context = command.make_context(f"favorbench {name}", [], resilient_parsing=True)
    text = _title(f"favorbench {name}") + _paragraphs(command.help or "") + "\n\n"
    text += "::\n\n    " + " ".join(command.get_usage(context).removeprefix("Usage: ").split()) + "\n\n"
    text += f".. program:: favorbench {name}\n\n"
    headings = _Sections()
    command.format_options(context, headings)
    for heading, records in headings.items():
        text += _title(heading, "-")
        text += "".join(
            f".. option:: {option}\n\n   {as_rst(' '.join(words.split()))}\n\n" for option, words in records
        )
    return text


def _api() -> str:
    text = _title("Python API") + "Every name is an attribute of the module: ``import favorbench as fb``.\n\n"
    text += ".. currentmodule:: favorbench\n\n"
    named = {name for names in FUNCTIONS.values() for name in names}
    others = {"Also": tuple(name for name in fb.__all__ if name not in named)}
    for heading, names in (FUNCTIONS | others).items():
        text += _title(heading, "-") + "\n".join(_entry(name) for name in names if name in fb.__all__) + "\n"
    return text


def _entry(name: str) -> str:
    found = getattr(fb, name)
    if isinstance(found, tuple):
        members = ", ".join(f"``{member.name}``" for member in found)
        return f".. py:data:: {name}\n\n   The registered classes: {members}.\n"
    if inspect.isclass(found):
        public = [member for member in vars(found) if not member.startswith(("_", "model_"))]
        methods = [member for member in public if inspect.isfunction(inspect.unwrap(vars(found)[member]))]
        more = f"   :members: {', '.join(methods)}\n" if methods else ""
        return f".. autoclass:: favorbench.{name}\n{more}"
    if callable(found):
        return f".. autofunction:: favorbench.{name}\n"
    return f".. py:data:: {name}\n\n   ``{found!r}``\n"


def _members(title: str, members: Iterable[type]) -> str:
    text = _title(title)
    for member in members:
        prefix = getattr(member, "prefix", None)
        text += _title(f"{prefix}:" if prefix else member.name, "-")
        text += _docstring(member.__doc__ or "") + "\n\n"
        reference = str(getattr(member, "reference", ""))
        if reference.partition(",")[0] not in " ".join((member.__doc__ or "").split()):
            text += f"Source: {as_rst(reference)}\n\n"
    return text


def _metrics() -> str:
    text = _title("Metrics")
    for name, metric in METRICS.items():
        text += (
            _title(name, "-") + f"{as_rst(metric.formula)}; {metric.better} is better; unit: {as_rst(metric.unit)}.\n\n"
        )
    return text
