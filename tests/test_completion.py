"""Completions that a shell offers, through the variable that it sets; and the layout of --help."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest
import typer.main
from command_line import read_table, run
from test_structure import imported_by

from favorbench import BASELINES, MAPS, METHODS, SAMPLERS
from favorbench.cli import app, complete
from favorbench.engine.scenario import shipped_scenarios
from favorbench.inputs import SHIPPED
from favorbench.maps import TRANSFORMS
from favorbench.metrics import METRICS
from favorbench.samplers import TRANSFORMS as SAMPLER_TRANSFORMS


def offered(*words, shell="bash", line=""):
    """The completions of the last word, or of a line as zsh and fish give it."""
    if shell == "bash":
        given = {"COMP_WORDS": "\n".join(["favorbench", *words]), "COMP_CWORD": str(len(words))}
    else:
        given = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (given | {complete.VARIABLE: f"complete_{shell}"}).items():
            patch.setenv(name, value)
        code, out, err = run()
    assert err == ""
    assert code == 0 or not out
    return out.split("\n")[:-1] if out.strip() else []


def named(members):
    return {member.name for member in members}


def test_names_are_those_of_the_registries():
    prefixes = {f"{transform.prefix}:" for transform in TRANSFORMS}
    assert set(offered("sweep", "--maps", "")) == named(MAPS) | prefixes
    sampler_prefixes = {f"{transform.prefix}:" for transform in SAMPLER_TRANSFORMS}
    assert set(offered("sweep", "--samplers", "")) == named(SAMPLERS) | sampler_prefixes
    assert set(offered("sweep", "--methods", "")) == named(METHODS)
    assert set(offered("sweep", "--methods", '"sinks(4):')) >= {"sinks(4):sampled-keys", "sinks(4):positive"}
    assert set(offered("sweep", "--baselines", "")) == named(BASELINES)
    assert set(offered("table", "run", "--metric", "")) == set(METRICS)
    assert {*SHIPPED, "gaussian", "sphere"} == set(offered("sweep", "--inputs", ""))
    assert set(offered("sweep", "")) == set(shipped_scenarios())
    assert offered("reproduce", "") == ["iid-vs-ortho", "trig-vs-positive", "kernel-trick", "all"]
    assert offered("list", "me") == ["methods", "metrics"]


@pytest.mark.parametrize(
    "words, expected",
    [
        *read_table("""
            sweep --maps hyp => hyperbolic
            sweep --maps positive,hyp => positive,hyperbolic
            sweep --maps centre : hyp => hyperbolic
            sweep --maps trig,centre : centre : hyp => hyperbolic
            sweep --maps "oprf(rho=-1),centre:hyp => oprf(rho=-1),centre:hyperbolic
            sweep --maps = hyp => hyperbolic
            sweep --methods 'sinks(4):window(64):clus => sinks(4):window(64):clusters
            sweep --inputs 'gaussian(std=0.5),min => gaussian(std=0.5),minilm
            theory positive antithetic : ii => iid
            verify positive/sim => positive/simplex positive/simplex-plus
            kernel soft => softmax
            sweep --wor => --workers
        """),
        ("sweep --maps calib", " ".join(f"calibrated:{name}" for name in sorted(named(MAPS)))),
        ("sweep --maps nosuch", ""),
        ("nosuch x", ""),
    ],
)
def test_lists_and_prefixes(words, expected):
    """As bash gives them: words are taken apart at colons, and a quotation is still open."""
    assert sorted(offered(*words.split())) == expected.split()


def test_runs_and_files_of_heads():
    for place in ("results/one", "results/two", "elsewhere/deep/run", "results/none"):
        os.makedirs(place)
        if not place.endswith("none"):
            open(f"{place}/manifest.json", "w").close()
    os.makedirs("results/model-x")
    open("results/model-x/model.json", "w").close()
    open("heads.npz", "w").close()
    assert offered("table", "") == ["results/model-x", "results/one", "results/two"]
    assert offered("compare", "results/one", "results/t") == ["results/two"]
    assert offered("report", "elsewhere/d") == ["elsewhere/deep/"]
    assert offered("plot", "elsewhere/deep/") == ["elsewhere/deep/run"]
    assert offered("plot", "--format", "png,p") == ["png,png", "png,pdf"]
    assert offered("table", "nowhere/") == []  # the shell offers files
    assert "heads.npz" in offered("recommend", "") and offered("sweep", "--inputs", "minilm,he") == ["minilm,heads.npz"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    "name", ["\\$(touch PWNED)", 'x\\"; touch PWNED #', "$(touch PWNED)", "a`b`", "a\nb", "a;b", "-rf"]
)
def test_names_that_a_shell_would_run_are_not_offered(name, shell):
    """The script of zsh evaluates what it is offered, and bash puts it into the line as it is."""
    for place in (name, "good"):
        os.makedirs(place)
        open(f"{place}/manifest.json", "w").close()
    open(f"{name}.npz", "w").close()
    texts = offered("table", "", shell=shell, line="favorbench table ")
    files = offered("recommend", "", shell=shell, line="favorbench recommend ")
    assert any("good" in text for text in texts)
    assert not any("touch" in text or name in text for text in [*texts, *files])


def test_zsh_and_fish():
    line = "favorbench sweep --maps positive,centre:hyp"
    assert offered(shell="fish", line=line) == ["positive,centre:hyperbolic"]
    (answer,) = offered(shell="zsh", line=line)
    assert answer.startswith("_arguments ") and "positive,centre" in answer and "hyperbolic" in answer
    assert offered(shell="zsh", line="favorbench table nowhere/") == ["_files"]


@pytest.mark.parametrize("line, code", [("favorbench model minilm --text ", 1), ("favorbench sweep --maps ", 0)])
def test_fish_offers_files_where_nothing_else_is_offered(line, code, monkeypatch):
    given = {complete.VARIABLE: "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    for name, value in (given | {"_TYPER_COMPLETE_ARGS": line}).items():
        monkeypatch.setenv(name, value)
    assert run() == (code, "", "")


@pytest.mark.parametrize(
    "given",
    [
        {}, {"COMP_WORDS": "favorbench"}, {"COMP_WORDS": "favorbench\nsweep", "COMP_CWORD": "x"},
        {"COMP_WORDS": "favorbench\nsweep\n--maps\n'\"(", "COMP_CWORD": "3"},
        {"COMP_WORDS": "", "COMP_CWORD": "-1"}, {"COMP_WORDS": "\n\n\x1b", "COMP_CWORD": "99"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("instruction", ["complete_bash", "complete_zsh", "complete_fish", "complete_nosuch", "x"])
def test_nothing_is_ever_said_on_stderr_while_a_line_is_typed(given, instruction):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COMP_WORDS", "COMP_CWORD", "_TYPER_COMPLETE_ARGS"):
            patch.delenv(name, raising=False)
        for name, value in (given | {complete.VARIABLE: instruction}).items():
            patch.setenv(name, value)
        _, _, err = run()
    assert err == ""


def test_a_tab_after_an_option_does_not_wait_for_numpy():
    given = {"COMP_WORDS": "favorbench\nsweep\n--wor", "COMP_CWORD": "2", complete.VARIABLE: "complete_bash"}
    code = f"import os, sys; os.environ.update({given!r}); sys.argv = ['favorbench']\n"
    code += "from favorbench import cli\ntry:\n    cli.main()\nexcept SystemExit:\n    pass\n"
    found = imported_by(code)
    assert "favorbench.cli.complete" in found
    assert found & {"numpy", "scipy", "pandas", "pyarrow", "matplotlib", "torch", "favorbench.maps"} == set()


SHELL = """
source <({variable}=source_bash favorbench)
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_favorbench_completion favorbench
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_the_script_that_bash_is_given():
    os.mkdir("bin")
    with open("bin/favorbench", "w") as file:
        file.write(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m favorbench "$@"\n')
    os.chmod("bin/favorbench", 0o755)
    text = SHELL.format(variable=complete.VARIABLE, words="favorbench sweep --maps trig,centre : hyp")
    environment = os.environ | {"PATH": f"{os.getcwd()}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("hyperbolic\n", "")


COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", ["recommend", "sweep", "capture", "model", "kernel", "speed", "theory"])
def test_every_option_of_a_long_command_has_a_heading(command):
    assert "\nOptions:" not in run(command, "--help")[1]


def test_an_option_is_spelt_the_same_everywhere():
    """And what is spelt the same is a switch, or takes a value: `--heads` was either."""
    spellings, kinds = {}, {}
    for command in COMMANDS.values():
        for one in command.params:
            if one.param_type_name == "option" and not one.hidden:
                spellings.setdefault(one.name, set()).add(tuple(sorted(one.opts)))
                for word in [*one.opts, *one.secondary_opts]:
                    kinds.setdefault(word, set()).add(one.is_flag)
    for found in (spellings, kinds):
        assert {name: ways for name, ways in found.items() if len(ways) > 1} == {}


def test_the_first_lines_of_help_say_what_a_command_does():
    """One said "a random-feature estimator" where there are methods, and that of `status` was cut off."""
    said = " ".join(run("--help")[1].split())
    assert "Measure how well estimators of softmax attention replace it, on your queries and keys" in said
    for name, command in COMMANDS.items():
        line = " ".join(command.help.partition("\n\n")[0].split())
        assert f"{name} {line}" in said and line.endswith("."), name


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_columns(command):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        code, out, err = run(*filter(None, [command]), "--help")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    if command == "sweep":
        headings = [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
        assert headings == ["Arguments:", "Estimators:", "Inputs:", "Draws:", "Computing:", "Output:"]
