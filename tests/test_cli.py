"""The command line as a user meets it: output, exit codes, pipes, and one clear line for every mistake."""

import dataclasses
import errno
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import favorbench as fb
from favorbench.errors import ModelError
from favorbench.results.summary import rows_of
from tests.command_line import check_refused, commands, in_a_process, printed, python, refused, run, succeeded
from tests.conftest import THOROUGH, random_heads

SMALL = "sweep --maps positive,trig -R 3,8 -L 24 -d 4 --trials 2"
COMMAND = f"{sys.executable} -m favorbench"
BY = ("estimator,sampler,R", "R", "sampler,estimator", "trial,estimator,R")
EXAMPLES = 150 if THOROUGH else 40  # of flags and files that a dry run is given


@pytest.fixture(scope="module")
def run_of_small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "run"
    run(f"{SMALL} --out {folder}")
    return folder


@pytest.fixture
def small_run(run_of_small):
    """The run of SMALL, in the folder ``run``."""
    shutil.copytree(run_of_small, "run")


def test_sweep_prints_the_table_a_sentence_and_where_it_is():
    out = printed(f"{SMALL} --out run")
    assert "mse, gaussian, scale 1, L = 24, d = 4" in out
    assert "R=3" in out and "uniform" in out and "best-rank" in out
    assert "2 draws are too few" in out and "favorbench plot run" in out
    assert "\x1b" not in out


def test_the_commands_that_are_shown_run_where_names_hold_spaces(rng):
    np.savez("two heads.npz", **random_heads(rng, 2, 24, 4))
    said = run("sweep --inputs 'two heads.npz' --maps positive --methods clusters -R 4,8 --trials 2 --out 'a run'")
    for command in ("table 'a run'", "plot 'a run'", "speed 'a run' --repeats 3"):
        said += run(command)
    found = set(
        re.findall(r"favorbench ((?:table|plot|speed) .*?)(?:$|;| draws)", "\n".join(map(str, said)), re.MULTILINE)
    )
    assert {command.split()[0] for command in found} == {"table", "plot", "speed"}
    for command in found:
        succeeded(command)
    assert "--methods 'sinks(4):clusters'" in refused("theory 'sinks(4):clusters'")


def test_rank_prints_groups():
    run(f"{SMALL} --budget features -R 4,8 --out run")
    out = printed("table run --rank")
    assert "groups" in out and "taylor-2" in out
    assert "So few can tell no two estimators apart: use 11 trials or more" in out
    assert "| positive / iid |" in run("table run --rank --format md")[1]
    assert len(json.loads(run("table run --rank --json")[1])) == 2 * 2 + 4
    assert run("table run --rank --format csv")[1].startswith("input,")
    check_refused("table run --rank --metric mze => --metric")


def test_a_budget_of_cost_is_said_so_that_a_newcomer_understands_it():
    estimators = "--methods 'clusters,sinks(2):clusters' --baselines sampled-keys,best-rank"
    out = succeeded(f"{SMALL} {estimators} -R 4,8 --trials 12 --budget cost --out run")
    assert "budget=4" in out and "budget=8" in out
    assert "a budget of 8 is the multiplications of linear attention with 8 features" in out
    assert "exact attention would need a budget of 12" in out  # 24 x 24 / (24 + 24)
    assert "best-rank looks at every pair of a query and a key: a bound" in out
    assert "At the cost of 8 features" in out and "has the least error" in out and "of uniform's" in out
    assert "softmax over random keys at this cost (sampled-keys)" in out
    ranked = run("table run --rank")[1]
    assert "sinks(2):clusters" in ranked and "each estimator at its largest size" in ranked
    out = succeeded("plot", "run")
    assert {"run/figures/error-vs-cost.png", "run/figures/maps.png"} <= set(out.split())


def test_the_papers_behind_a_family():
    assert "Rethinking Attention with Performers" in run("list maps --papers --json")[1]
    assert "@misc{choromanski2021," in run("list maps --format bibtex")[1]


def test_json_is_all_that_json_prints():
    code, out, err = run(f"{SMALL} --out run --json")
    found = json.loads(out)
    assert (code, err, found["complete"]) == (0, "", True)
    assert len(found["summary"]) == 2 * 2 * 2 + 3 + 2
    for command in ("table run --json", "list maps --json", "plot run --json"):
        json.loads(run(command)[1])
    assert json.loads(run(f"{SMALL} --dry-run --json")[1])["draws"] == 2


def test_dry_run_computes_nothing():
    out = succeeded(f"{SMALL} --dry-run")
    assert "1 cells, 2 draws, 26 rows" in out
    assert os.listdir() == []


@pytest.mark.parametrize("format", ["rich", "md", "csv", "latex", "json"])
@pytest.mark.parametrize("by", ["", *(f"--by {axes}" for axes in BY)])
def test_table_in_every_format(format, by, small_run):
    out = succeeded(f"table run --format {format} {by}")
    assert out.strip()
    if format == "csv" and by.endswith(BY[0]):
        table = pd.read_csv(io.StringIO(out))
        rows = pd.read_parquet("run/trials")
        medians = rows.groupby(["estimator", "sampler", "num_projections"], dropna=False)["mse"].median()
        found = table.set_index(["estimator", "sampler", "num_projections"])["mse_median"]
        pd.testing.assert_series_equal(
            found.sort_index(), medians.sort_index(), check_names=False, check_index_type=False, rtol=1e-14
        )


def test_export_holds_every_row(small_run):
    rows = pd.read_parquet("run/trials")
    assert run("table run --rows")[1].count("\n") == len(rows) + 1
    for name in ("run.parquet", "RUN.PARQUET"):
        assert run(f"table run --rows -o {name}")[1] == f"{name}: {len(rows)} rows\n"
        pd.testing.assert_frame_equal(pd.read_parquet(name), rows, check_dtype=False)


def test_old_names_of_table_work_and_say_the_new_one(small_run):
    for old, new in (("rank run --format csv", "--rank --format csv"), ("export run --csv -o -", "--rows")):
        code, out, err = run(old)
        assert (code, out) == (0, run(f"table run {new}")[1]) and f"is now favorbench table {new[:6]}" in err
    refused("export run --parquet --out -", "Parquet is not text; give a file")
    assert run("export run --parquet")[1] == f"run.parquet: {len(pd.read_parquet('run/trials'))} rows\n"
    shown = run("--help")[1]
    assert " table " in shown and not any(f"\n  {name} " in shown for name in ("rank", "export", "time"))


def test_the_old_flag_of_single_heads_works_and_says_the_new_one():
    code, _, err = run("model nowhere --heads --text missing.txt")
    assert code == 2 and "--heads is now --single-heads" in err and "missing.txt" in err
    assert "--heads is now" not in run("model nowhere --text missing.txt")[2]


def test_plot_draws_every_run_below_and_a_bad_one_does_not_stop_it():
    run(f"{SMALL} --out results/one")
    run(f"{SMALL} --maps positive --seed 1 --out results/two")
    Path("results/bad").mkdir()
    Path("results/bad/manifest.json").write_text("{}")
    code, out, err = run("plot results")
    assert code == 0 and "skipped: results/bad/manifest.json was not written by" in err
    assert {Path(line).parent.parent.name for line in out.split()} == {"one", "two"}
    assert all(Path(line).exists() for line in out.split())


@pytest.mark.parametrize("what", ["maps", "samplers", "methods", "inputs", "scenarios", "metrics", "baselines"])
def test_list(what):
    out = succeeded("list", what)
    assert len(out.splitlines()) >= 4
    assert f"{what}: " in succeeded("list")


@pytest.mark.parametrize("what", ["maps", "samplers", "methods", "inputs", "scenarios", "metrics", "baselines"])
def test_a_list_fits_a_narrow_terminal(what):
    """Every column is there, and every name stands whole at the beginning of a line of each part."""
    from rich.console import Console

    from favorbench.catalogue import records
    from favorbench.console import show
    from favorbench.sections import Section

    narrow = Console(width=80, file=io.StringIO())
    show(narrow, [Section(rows=records(what))])
    lines = narrow.file.getvalue().splitlines()
    headings = [line.split() for line in lines if line.startswith("name ")]
    assert [name for line in headings for name in line if name != "name"] == list(records(what)[0])[1:]
    for record in records(what):
        assert sum(line.split(" ")[0] == record["name"] for line in lines) == len(headings)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("what", ["methods", "baselines"])
def test_the_lists_of_methods_show_declarations_and_parameters(what):
    """Held against the members themselves, one claim at a time."""
    from favorbench.baselines import BASELINES
    from favorbench.methods import METHODS

    found = {record["name"]: record for record in json.loads(run("list", what, "--json")[1])[what]}
    claims = ("random", "oracle", "causal_safe", "convex", "unbiased", "exact_at_full_size", "permutation_invariant")
    for member in METHODS if what == "methods" else BASELINES:
        assert [found[member.name][name] for name in claims] == [
            "yes" if getattr(member(), name) else "no" for name in claims
        ]
        names = [field.name for field in dataclasses.fields(member) if field.init]
        assert re.findall(r"(\w+)=", found[member.name]["parameters"]) == names
    if what == "methods":
        assert found["clusters"]["parameters"] == "points='random'|'pivots', lloyd=0, order=1"
        assert found["window(w):METHOD"]["parameters"] == "w, sampler='orthogonal'"
        assert found["top(k):METHOD"]["oracle"] == "yes" and found["sinks(n):METHOD"]["oracle"] == "as METHOD"


def test_a_note_is_said_once_below_tables_that_share_it():
    out = run("sweep --inputs minilm --maps positive -R 4 --trials 2 -L 32 -q --out run")[1]
    assert "mse, minilm L" not in out and out.count("R counts projections and features") == 1  # over heads
    for flags in ("", "--format md", "--rank", "--rank --format md"):
        out = run(f"table run {flags} --heads L0H1,L0H5,L5H0,L5H8")[1]
        assert out.count("2 draws") == 1 and len(re.findall("minilm L.H., ", out)) == 4
    written = Path("run/summary.md").read_text()
    assert written.count("median mse of 2 draws") == 1 and written.count("## mse, minilm L") == 4


def test_notes_that_differ_are_all_said():
    from favorbench.sections import Section, dedupe_notes

    notes = [one.note for one in dedupe_notes(Section(note=note) for note in "aabaa")]
    assert notes == ["", "a", "b", "", "a"] and dedupe_notes([]) == ()


MISTAKES = commands("""
    sweep --maps positve => did you mean 'positive'
    sweep --maps 'oprf(roh=0.5)' => no parameter 'roh' (did you mean 'rho'?); it has rho
    sweep --maps 'maclaurin(law=poisson)' => texts in quotes
    list metrics --papers => metrics have no papers
    list inputs --format bibtex => inputs have no papers
    theory positive --norm x => --norm: 'x' given
    theory positive -R 0 => -R: '0' given
    theory trig-blog => no closed form
    sweep -R 0 => -R: 0 given
    sweep -R sixteen => -R: 'sixteen' given
    sweep -d 0 => -d: 0 given
    sweep --trials -1 => --trials: -1 given
    sweep --trials many => --trials: 'many' given, allowed: a valid integer
    sweep --workers 0 => --workers
    sweep --mapz trig => No such option
    swep => No such command
    sweep absent.toml => No such file
    sweep quik => did you mean 'quick'
    sweep --inputs absent.npz => No such file
    sweep heads.npz => is a file of arrays, not a scenario: give it as --inputs
    sweep --inputs q.npy => it has one array, and q, k and v are needed: save them in one file: np.savez(
    recommend heads.pt => reading a pickle runs its code: load q, k and v with torch, and save them
    sweep --inputs minilm -d 16 => leave -d out
    sweep --inputs minilm -L 1024 => has 512 tokens
    table absent => does not exist
    table => Missing argument
    table . --metric mze => did you mean 'mse'
    table . --stat medain => did you mean 'median'
    plot absent => does not exist
    plot . => no favorbench run at or below
    table . --rank --by R => --by: leave it out with --rank
    table . --rows --metric mse --json => --json, --metric: leave it out with --rows
    table . -o rows.csv => --out: only --rows writes a file
    table . --rows -o run/manifest.json => run/manifest.json: a run has such files; give another name
    table . --rows -o run/trials/rows.csv => run/trials/rows.csv: a run has such files; give another name
    table . --rows => no manifest.json
    list mapps => is not one of
    sweep --batch 4,8 => --batch: '4,8' given, allowed: one whole number from 1
    sweep --batch 0 => --batch: '0' given, allowed: one whole number from 1
    speed --device gpu => --device: 'gpu' given, allowed: cpu, cuda or cuda:N
    theory trig --seed -1 => '-1' was given
    reproduce figure-1 => is not one of
    verify nosuch => methods block-sparse, clusters, eva
""")


@pytest.mark.parametrize("arguments, said", MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_a_mistake_is_one_clear_line_and_exit_2(arguments, said):
    assert said in refused(*arguments)
    assert os.listdir() == []  # nothing was made


@pytest.mark.parametrize("arguments", ["sweep --samplers foo", "sweep --maps xyz", "sweep zebra", "table . --metric q"])
def test_a_name_that_is_like_no_other_is_not_corrected(arguments):
    assert "did you mean" not in refused(arguments)


def test_arrays_of_integers_say_how_to_convert_them():
    np.savez("whole.npz", **{name: np.ones((2, 12, 4), int) for name in "qkv"})
    assert "is int64; it must be float64" in refused("sweep --inputs whole.npz")
    assert "convert it, e.g. with .astype('float32')" in refused("recommend whole.npz")


def test_debug_shows_the_traceback():
    done = in_a_process("sweep --maps positve --debug")
    assert "Traceback" in done.stderr


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["--maps", "--samplers", "-R", "-L", "-d", "--scale", "--value-scale", "--inputs", "--heads", "--dtype",
                 "--baselines", "--methods", "--budget", "--redraw", "--trials", "--seed"]
            ),
            st.text(max_size=6)
            | st.sampled_from(["positive", "16", "0", "-1", "1e999", "nan", "a:b", ".npz", "(", "x(", "iid"]),
        ),
        max_size=4,
    )
)  # fmt: skip
def test_any_flags_are_a_plan_or_one_clear_line(pairs):
    """Whatever the values are: a dry run, or exit 2 with one line; never a traceback."""
    code, out, err = run("sweep", *[word for pair in pairs for word in pair], "--dry-run")
    assert code in (0, 2) and "Traceback" not in err and "unexpected" not in err
    assert (code == 0 and out) or err.startswith("favorbench: ")


#: Values that keys of a scenario file may have, and some that they may not.
RIGHT = {
    "R": [8, [1, 2], "dlogd", "dlogd"], "maps": ["trig", ["trig", "positive"]], "samplers": ["iid", ["iid", "sobol"]],
    "scale": [1, 1.0, [0.5, 2]], "trials": [1, 3], "seq_len": [8, [8, 16]], "redraw": ["R"], "causal": [True, False],
}  # fmt: skip
WRONG = {
    "R": [0, "many", []], "maps": [[], 3, "tring"], "samplers": ["iidd"], "scale": [[[1]], -1], "trials": [1e9, "2", 0],
    "seq_len": ["8"], "redraw": ["never"], "causal": ["yes"], "mapz": ["trig"], "seed": [-1],
}  # fmt: skip
ALWAYS = {"R": 4, "maps": "trig", "samplers": "iid"}


def entries(values):
    return st.sampled_from([(key, value) for key, several in values.items() for value in several])


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(entries(RIGHT), max_size=5), st.lists(entries(WRONG), max_size=1), st.just("") | st.text(max_size=40))
@example([], [], "\r")  # which TOML does not have, and reading as text would turn into a line's end
def test_any_file_is_a_plan_or_one_clear_line(right, wrong, more):
    """A plan exactly if every key is right, and it is the plan of those keys; otherwise exit 2 and one line."""
    keys = ALWAYS | dict(right) | dict(wrong)
    text = "\n".join([*(f"{key} = {json.dumps(value)}" for key, value in keys.items()), more])
    Path("any.toml").write_text(text, encoding="utf-8", errors="ignore", newline="\n")
    try:
        read = tomllib.loads(Path("any.toml").read_bytes().decode())
    except tomllib.TOMLDecodeError:
        read = None
    code, out, err = run("sweep any.toml --dry-run --json")
    if wrong or read != keys:
        assert (code, out) == (2, "") and err.startswith("favorbench: any.toml") and err.count("\n") == 1
        assert "Traceback" not in err and "unexpected" not in err
        return
    plan = json.loads(out)
    assert (code, err) == (0, "") and plan["scenario"]["maps"] == listed(keys["maps"])
    assert plan["scenario"]["samplers"] == listed(keys["samplers"])
    sizes = len(listed(keys["R"])) if keys.get("redraw") == "R" else 1
    cells = len(listed(keys.get("scale", 1))) * len(listed(keys.get("seq_len", 1))) * sizes
    assert plan["draws"] == cells * keys.get("trials", 15)


def listed(value):
    return value if isinstance(value, list) else [value]


MY_MAP = """
from dataclasses import dataclass
import numpy as np
from favorbench import FeatureMap, Features, exponential_target, half_squared_norm

@dataclass(frozen=True)
class Mine(FeatureMap):
    power: float = 1.0
    name = "mine"
    reference = "none"
    features_per_projection = 1
    nonnegative = True
    unbiased = True

    def features(self, x, projection, sample):
        return (Features(None, self.power * (projection - half_squared_norm(x))),)

    def target_kernel(self, x, y, rows):
        return exponential_target(x, y, rows)
"""


def test_a_users_own_map_needs_no_registration():
    Path("my_maps.py").write_text(MY_MAP)
    done = in_a_process(f"{SMALL} --maps 'positive,my_maps:Mine,my_maps:Mine(power=2.0)' --out run --workers 2")
    assert done.returncode == 0, done.stderr
    rows = pd.read_parquet("run/trials").set_index(["estimator", "trial", "sampler", "num_projections"])["mse"]
    pd.testing.assert_series_equal(rows["mine"], rows["positive"])  # the same formula on the same omega
    assert not rows["mine(power=2.0)"].equals(rows["mine"])


def test_json_keeps_every_digit():
    run(f"{SMALL} --value-scale 1e-6 --out run")
    trials = pd.read_parquet("run/trials")
    for row in json.loads(run("table run --by estimator,sampler,R --json")[1]):
        rows = rows_of(trials, row["estimator"], row["sampler"], row["num_projections"])
        assert row["mse_median"] == rows["mse"].median()
        assert 0 < row["mse_median"] < 1e-9 or row["estimator"] == "best-rank"


def test_latex_is_escaped_and_titled():
    import numpy as np

    rng = np.random.default_rng(0)
    np.savez("a_b%c#&$[red].npz", **random_heads(rng, 2, 20, 4))
    run("sweep --maps positive,trig -R 3,8 --trials 2 --inputs 'a_b%c#&$[red].npz' --out run")
    out = run("table run --format latex --heads h0,h1")[1]
    assert r"a\_b\%c\#\&\$[red].npz h0" in out and r"a\_b\%c\#\&\$[red].npz h1" in out
    assert "}^" not in out and r" \times 10^{" in out  # the asterisk is text: two superscripts are an error in TeX
    assert "[red].npz h0" in run("table run --heads h0")[1] and "[red].npz, scale" in run("table run")[1]
    assert run("plot run")[0] == 0
    header = run("table run --by R,estimator --format latex")[1]
    assert "& estimator = best-rank &" in header  # as math its hyphen is a minus


@pytest.mark.parametrize(
    "command",
    ["list maps", *(pytest.param(f"{name} run{more}", marks=pytest.mark.slow)
                    for name, more in (("table", ""), ("table", " --rows"), ("sweep --out", "")))],
)  # fmt: skip
def test_a_closed_pipe_is_no_error(command):
    run("sweep --maps positive -R 4 -L 8 -d 2 --trials 1 --out run")
    if command.startswith("sweep"):
        command += " --maps positive -R 4 -L 8 -d 2 --trials 1"
    line = f"{COMMAND} {command} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.stdout.strip() == "0" and done.stderr == ""


@pytest.mark.parametrize("end", ["2> >(exit)", "2> /dev/full"])
def test_a_message_that_nobody_reads_is_no_reason_to_end(end, rng):
    """It ended the command without a result, in the first case with exit code 0."""
    np.savez("mine.npz", **{name: array.astype("f4") for name, array in random_heads(rng, 2, 20, 4).items()})
    line = f"{COMMAND} sweep --inputs mine.npz --maps positive -R 4 --trials 1 --out run {end}; echo code $?"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.stdout.endswith("code 0\n") and "positive" in done.stdout


def test_a_full_stdout_is_said():
    done = subprocess.run(f"{COMMAND} list maps > /dev/full", shell=True, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "favorbench: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("command", ["speed --maps elu -L 16,32 -d 2 --repeats 3", "kernel --trials 1", "theory trig"])
def test_what_was_measured_is_printed_where_its_figure_cannot_be_written(command):
    """Minutes of timing were lost in a folder that is read-only or full, which was noticed when they were over."""
    Path("file").touch()
    code, out, err = run(f"{command} -o file/folder")
    assert code == 2 and "Not a directory" in err and err.count("\n") == 1
    assert out.splitlines()[:1] == succeeded(f"{command} -o folder").splitlines()[:1] != []


def test_where_no_process_can_be_started_the_limit_is_named_and_not_the_output(monkeypatch):
    """As at the end of `ulimit -u`, or of the processes that a container may have."""

    def fail():
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("multiprocessing.resource_tracker.ensure_running", fail)
    code, _, said = run("sweep --maps positive -R 4 -L 8 -d 2 --trials 1 --out run")
    assert code == 2 and said.startswith("favorbench: cannot start another process: ") and "ulimit -u" in said


def test_output_that_is_cut_off_is_an_error_where_python_does_not_buffer():
    """python -u writes once, and drops what a full disk, here a small limit, does not take."""
    line = f"ulimit -f 1; {COMMAND} list maps > out"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert (done.returncode, done.stderr) == (2, "favorbench: cannot write the output: File too large\n")


def test_a_folder_is_no_file_to_write():
    run("sweep --maps positive -R 4 -L 8 -d 2 --trials 1 --out run")
    for folder in ("", ".", "/"):
        assert "it is a folder; give the name of a file" in refused("table", "run", "--rows", "--out", folder)


def test_a_name_that_is_too_long_is_named():
    long = "x" * 300
    for command in (f"sweep -R 4 -L 8 -d 2 --out {long}", f"table {long}", f"status {long}", f"recommend {long}"):
        assert "cannot use 'xxx" in (line := refused(command)) and "too long" in line and len(line) < 200


def test_no_command_shows_the_help():
    out = printed()
    assert "Usage: favorbench" in out and "reproduce" in out


def test_reproduce_prints_json():
    out = succeeded("reproduce kernel-trick --out blog --json")
    assert len(json.loads(out)["reports"][0]["claims"]) == 3


def test_json_knows_no_infinity():
    """An error that float64 cannot hold is expected of some, and is null, not the end of the command."""
    command = "theory positive iid --norm 30 -R 16 --draws 0"
    out = printed(f"{command} --json")
    assert json.loads(out)["points"][0]["closed_form"] is None
    assert " inf " in run(command)[1]
    Path("infinite.py").write_text("import numpy as np\n\ndef inf(q, k, v):\n    return np.full(v.shape, np.inf)\n")
    code, out, err = run("audit infinite:inf --runs 6 --json")
    found = json.loads(out)["findings"]
    assert (code, err) == (0, "") and found[0]["median"] is None and found[0]["fault"] is True
    assert run("audit infinite:inf --runs 6")[0] == 0


def test_no_warning_of_a_library_reaches_the_user():
    done = in_a_process("theory positive iid --norm 30 -R 16 --draws 50 --out .")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_seed_gives_the_same_numbers_again_and_another_seed_others():
    first, again, other = (
        json.loads(run(f"theory trig --norm 1 -R 16 --draws 50 --seed {seed} --json -q")[1]) for seed in (3, 3, 4)
    )
    assert first == again and first["points"][0]["measured"] != other["points"][0]["measured"]
    assert first["points"][0]["closed_form"] == other["points"][0]["closed_form"]


def test_every_key_of_a_scenario_has_its_flag():
    """Messages of the library name keys; a user of the command line reads the flags that he has typed."""
    from favorbench.cli.app import flags, with_flags
    from favorbench.engine.scenario import Scenario

    assert set(Scenario.model_fields) - set(flags()) == {"name", "title"}
    assert with_flags("`num_projections` 3, `seq_len`, `head_dim` and `value_scale`: `nonsense`") == (
        "-R 3, -L, -d and --value-scale: nonsense"
    )


@pytest.mark.parametrize("command, name", [("sweep --inputs", "pipe.npz"), ("kernel --points", "pipe.csv")])
def test_a_named_pipe_is_refused_and_not_waited_for(command, name):
    os.mkfifo(name)
    assert f"'{name}': not a regular file" in refused(f"{command} {name}")


@pytest.mark.parametrize("flag", ["--max-size", "--target"])
def test_a_long_value_is_not_repeated_whole(flag):
    assert len(refused("recommend", "minilm", flag, 5000 * "x")) < 400


def test_theory():
    out = succeeded("theory positive orthogonal --norm 0.5,2 -R 16 --draws 200 --out figures")
    assert "Measured: 200 draws; gate" in out and Path("figures/theory-positive-orthogonal.png").exists()
    assert "Measured: 1 draw; gate" in succeeded("theory trig --draws 1")
    assert json.loads(run("theory trig --draws 0 --json")[1])["needed"]["0.5"] > 0


def test_a_budget_of_features_has_only_its_own_columns():
    out = run(f"{SMALL} -R 8,16 --budget features --out run")[1]
    assert out.count("budget=") == 2 and "budget=8" in out and "budget=16" in out
    assert "budget=1 " not in out and "All use as many features as the budget says" in out
    assert run("plot run")[0] == 0
    data = pd.read_csv("run/figures/iid-vs-ortho.csv")
    assert set(data.query("series == 'uniform'")["budget"]) == {8, 16}


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_the_extra_for_models_one_line_names_the_installation(missing, monkeypatch):
    found = importlib.util.find_spec
    hidden = {"torch", "transformers"} if missing == "torch" or found("torch") is None else {"transformers"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in hidden else found(name, *rest))
    Path("text.txt").write_text("some words")
    name = "torch" if "torch" in hidden else "transformers"
    expected = f"favorbench: models need {name}, which is not installed: pip install 'favorbench[models]'\n"
    assert refused("capture minilm --text text.txt") == expected


def test_wrong_requests_are_refused_without_torch():
    Path("text.txt").write_text("some words")
    check_refused("""
        capture minilm => minilm reads texts: give --text FILE
        capture minilm --text text.txt --out a.txt => --out a.txt: allowed are
        capture minilm --text . => --text .: a directory; give its files: ./*.txt
    """)
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(ModelError, match=r"pip install 'favorbench\[models\]'"):
            fb.capture(None, None)


def test_only_what_draws_imports_matplotlib():
    """It takes a third of the seconds of a table."""
    succeeded("sweep quick --maps trig -R 4 -L 8 -d 4 --trials 2 --out run -q")
    without = "import sys; sys.modules['matplotlib'] = None; from favorbench.__main__ import main; main()"
    for command in ("table run", "compare run run"):
        done = python("-c", without, *command.split())
        assert (done.returncode, done.stderr) == (0, "")
    assert "a library cannot be loaded" in python("-c", without, "plot", "run").stderr
