"""README.md and docs/: commands parse, what they name exists, links lead somewhere, Python blocks run."""

import re
from functools import cache

import numpy as np
import pytest
import typer

import favorbench as fb
from favorbench import metrics
from favorbench.baselines import get_baseline
from favorbench.cli import app
from favorbench.engine.columns import COLUMNS
from favorbench.errors import FavorbenchError
from favorbench.inputs import get_input
from favorbench.models.load import PACKAGED
from favorbench.models.store import SCHEMA
from favorbench.numerics.backend import DTYPES
from favorbench.registry import split_list
from favorbench.studies.kernel.targets import KERNELS
from tests import pages
from tests.conftest import REPOSITORY

NAMES = [str(page.relative_to(REPOSITORY)) for page in pages.PAGES]

#: Names on pages that favorbench cannot look up: marks, arguments, users' own members, other tools.
ELSEWHERE = re.compile(
    r"""[*+=x~-]|<1e-28|\(bound\)|rng|CI|generate|coupling|check|attention_error(\.check)?|module:\w+|values\ \*.*
    |attention_mask|(mine|my_module|my_maps):\w*|concurrent\.futures\.Executor|pandas\.\w+\(.*\)
    |((THOROUGH|CAMPAIGN|CASES|KILLS|HOLD)=\d+\ )?(pip|pytest|ruff|pyright)\b.*
    |pd\.read_parquet\(.*\)|_damaged-\.\.\.|part-\d+-DIGEST\.parquet
    |[\w.-]+\.(npz|safetensors|gguf|npy|csv|html|png)|/iid|dask|\.\w+|(calibrated|centre|antithetic):(MAP|X)?|(window|sinks|top)\(\w+\):X""",
    re.VERBOSE,
)

#: Flags and settings of Dask, OpenBLAS and our benchmarks, commands of SLURM, names of network interfaces.
OF_OTHERS = re.compile(
    r"FAVORBENCH_TRUST=[\w,]+"
    r"|(--nthreads|--memory-limit|--host|--interface)( \w+)?|distributed\..*|OPENBLAS_\w+=\w+|workers"
    r"|--most|--rows \d+|walltime|sbatch|srun|lo|ib0"
)

#: Blocks that need a model, or what a command wrote, or other machines: the tests of these run such lines.
NEEDS_MORE = re.compile(r"import torch|fb\.replace_attention|fb\.capture|[cC]luster|effects\.json")

#: Files that a run has.
OF_A_RUN = {
    "manifest.json", "seconds.json", "effects.json", "recommendation.json", "model.json", "summary.md", "trials/",
    "figures/",
}  # fmt: skip


@cache
def group():
    return typer.main.get_group(app)


@cache
def options():
    found = (
        option
        for command in group().commands.values()
        for p in command.params
        for option in (*p.opts, *p.secondary_opts)
    )
    return frozenset({*found, "--help", "-h", "--version", "--debug"})


def parsed(words):
    """The parameters of a command line, which is not run. Raises Typer's error for a line that it refuses."""
    if not words or words[0].startswith("--") or "--help" in words:
        return {}
    command = group().commands[words[0]]
    if len(words) == 1 and words[0] not in {"sweep", "verify", "speed"}:
        return {}  # a command that is mentioned
    return command.make_context(words[0], list(words[1:]), resilient_parsing=False).params


def exists(span):
    """Whether what stands between backquotes is there: a flag, a command, a member, a path, a name of the code."""
    first = span.split()[0]
    if ELSEWHERE.fullmatch(span) or OF_OTHERS.fullmatch(span) or span in OF_A_RUN or first == "favorbench":
        return True  # commands have a test of their own
    if first.startswith("-"):
        return first.split("=")[0] in options()
    if first == "python":
        return (REPOSITORY / f"{span.split()[2].replace('.', '/')}.py").exists()
    name = first.split("(")[0].removeprefix("fb.")
    return name in known() or is_file(first) or is_member(span)


@cache
def known():
    """Names of the code that a page may use."""
    members = {name for base in (fb.FeatureMap, fb.Method, fb.Sampler) for name in dir(base)}
    columns = {column.name for column in COLUMNS}.union(SCHEMA.names)
    kernels = {kernel.name for kernel in KERNELS}
    dtypes = {name for names in DTYPES.values() for name in names}
    return frozenset({
        *group().commands, *metrics.METRICS, *PACKAGED, *dtypes, *kernels, *columns, *members, *fb.__all__,
    })  # fmt: skip


def is_file(name):
    """A path, of the repository or below favorbench/, a file's name, a room, or a name that a file there has."""
    package = REPOSITORY / "favorbench"
    if (REPOSITORY / name).exists() or (package / name).exists() or any(package.rglob(f"*/{name}")):
        return True
    defined = re.compile(rf"^(class )?{re.escape(name)}\b( =|:|\()|\"{re.escape(name)}\"", re.MULTILINE)
    return name.strip("_")[:1].isupper() and any(
        defined.search(path.read_text("utf-8")) for path in package.rglob("*.py")
    )


def is_member(spec):
    for get in (fb.get_map, fb.get_method, fb.get_sampler, get_baseline, get_input, fb.load_scenario):
        try:
            get(spec)
        except FavorbenchError:
            continue
        return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_commands_parse(name):
    for words in pages.commands(REPOSITORY / name):
        try:
            parsed(words)
        except Exception as error:  # Typer's, whose classes are its own affair
            pytest.fail(f"favorbench {' '.join(words)}: {getattr(error, 'format_message', error.__str__)()}")


def test_a_line_that_is_wrong_is_noticed():
    for line in (
        "sweep --map positive",
        "swep",
        "rank --metric mse",
        "compare a b --fail-on slower",
        "sweep --workers none",
    ):
        with pytest.raises(Exception):  # noqa: B017  Typer's own classes
            parsed(line.split())


@pytest.mark.parametrize("name", NAMES)
def test_members_of_commands_exist(name):
    """The members in --maps, --methods, --samplers and --baselines, without a user's own."""
    for words in pages.commands(REPOSITORY / name):
        if words and words[0] in {"sweep", "recommend", "model"}:
            given = {k: v for k, v in parsed(words).items() if k in {"maps", "methods", "samplers", "baselines"} and v}
            for value in given.values():
                ours = [spec for spec in split_list(str(value)) if not re.search(r"\b(mine|my_\w+):", spec)]
                assert all(is_member(spec) for spec in ours if spec != "none"), f"{words}: {ours}"


@pytest.mark.parametrize("name", NAMES)
def test_names_between_backquotes_exist(name):
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    assert [span for span in pages.code_spans(text) if not exists(span)] == []


def test_a_name_that_is_not_there_is_noticed():
    for span in ("--baseline", "positiv", "fb.swep", "tests/test_nothing.py", "clusters(loyd=3)", "quik"):
        assert not exists(span)


#: Sentences of version 0.2.0, each correct, that were tiring to read.
TIRING = (
    "nothing is written that git has", "that nothing will do", "that may be read after every draw", "Of many heads",
    "at worst 2.2 times", "hashes do no better", "goes unnoticed beside", "nats a token", "from which length on",
    "known mistakes are right", "All of it, seconds too", "Of each layer", "that are no longer they are",
    "What has no R", "Compared at equal num_features", "what neither another nor", "of the model replaced",
    "nobody is at it", "mend it and run", "if none of them is saved",
)  # fmt: skip


@pytest.mark.parametrize("pattern", ["README.md", "docs/**/*.md", "favorbench/**/*.py", "results/**/*.md"])
def test_tiring_sentences_do_not_come_back(pattern):
    for file in REPOSITORY.glob(pattern):
        text = " ".join(file.read_text(encoding="utf-8").split())
        assert [phrase for phrase in TIRING if phrase in text] == [], file


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    page = REPOSITORY / name
    for target in pages.links(page.read_text(encoding="utf-8")):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path) if path else page
        assert goal.exists() or "_generated" in path, target
        assert not anchor or anchor in pages.anchors(goal.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("name", NAMES)
def test_python_blocks_run(name, module):
    """In one folder, in their order; a block whose first line names its file can be imported by those after it."""
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    names = {"__name__": "page"}
    for block in pages.blocks(text, "python"):
        if NEEDS_MORE.search(block.text):
            compile(block.text, name, "exec")
            continue
        if (match := re.match(r"# (\w+)\.py\n", block.text)) is not None:
            module(match[1], block.text)
        exec(compile(block.text, name, "exec"), {} if match else names)  # the names of a file are its own


@pytest.mark.parametrize("size", [1, 2, 61, 62, 63, 64])
def test_multipole_of_the_page_is_that_of_favorbench(size):
    """At sizes that do not split into halves, it had one exact key less."""
    text = (REPOSITORY / "docs/multipole.md").read_text(encoding="utf-8")
    exec(next(block.text for block in pages.blocks(text, "python") if "def multipole" in block.text), names := {})
    q, k, v = np.random.default_rng(0).normal(size=(3, 128, 8))
    ours = names["multipole"](q, k, v, size, np.random.default_rng(1))
    theirs = fb.method_attention(q, k, v, "multipole", size, rng=np.random.default_rng(1))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
