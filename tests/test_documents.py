"""Every line of README.md and docs/ runs, in the order of its page, in a folder that has the files it speaks of."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("distributed")

from distributed import Client

import favorbench as fb
from tests import pages
from tests.clusters import cluster
from tests.command_line import run
from tests.conftest import REPOSITORY
from tests.small_models import small_folder, small_inputs, small_model, small_text

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NAMES = [str(page.relative_to(REPOSITORY)) for page in pages.PAGES]

#: Lines that .ci/run executes itself, or that need machines which a test does not have: each with its page.
ELSEWHERE = {
    "README.md": r"python3 -m venv|activate|pip install",
    "docs/cluster.md": r"pip install|dask (scheduler|worker)|SBATCH|export|scheduler\.json|dask_(jobqueue|kubernetes)",
    "docs/developing.md": r"sphinx",
    "docs/findings.md": r"favorbench reproduce",
    "docs/gpu.md": r"--device cuda",
    "docs/regression.md": r"pip install|pytest",
}

#: Commands that make the runs which a page starts from.
BEFORE = {
    "docs/regression.md": [
        f"favorbench sweep --maps positive --methods clusters -L 64 -R 16 --trials 2 -q --out results/{name}"
        for name in ("main", "branch", "all")
    ]
}

#: Lines that take longer than a test may: the flags that make them small.
SMALLER = {
    "capture minilm": "--layers 0,5",
    "capture smollm2": "-L 64 --last 16",
    "sweep catalogue": "--trials 1 -R 48 --inputs gaussian --out results/catalogue",
    "sweep estimators": "--trials 1 -R 16",
    "sweep sinks": "--trials 1 -R 16",
    "sweep real-heads": "--trials 1 -R 16",
    "--inputs minilm72-gpl": "--trials 1 -R 16",
    "sweep --scale": "--trials 1 -L 64 -R 16",
    "sweep --inputs minilm --methods clusters,mine:nearest": "--trials 1 --out results/job",
    "1048576": "-L 4096 -R 16",
    "--inputs heads.npz --maps": "--trials 1 -R 16",
    "model smollm2": "-L 32 -R 8 --draws 1",
    "--predict 4": "-L 24 -R 8",
    "--exact-heads": "-L 24 -R 8,16 --exact-heads L0H1 --max-cost 1e9",
    "recommend --model": "-L 24",
    "--over texts": "--probability 0.4 --confidence 0.6",
    "my-study": "--trials 1",
    "speed results/": "--repeats 3",
    "favorbench speed": "-L 64,128 --repeats 3",
    "favorbench verify": "positive/iid",
}


def lines(block):
    """The command lines of a block, without comments."""
    text = re.sub(r"\s+#.*$", "", block.replace("\\\n", " "), flags=re.MULTILINE)
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def prepare():
    """Write the files that pages speak of: a model, texts, heads, and estimators; return the names of their Python."""
    small_folder("path/to/model")
    tokenizer = Path("path/to/model/tokenizer_config.json")
    tokenizer.write_text(tokenizer.read_text().replace('"model_max_length": 32', '"model_max_length": 512'))
    Path("texts").mkdir()
    for start, text in enumerate(("one", "two", "three"), start=5):
        small_text(Path(f"{text}.txt"), 600, start)
        shutil.copy(f"{text}.txt", "texts")
    for block in pages.blocks((REPOSITORY / "docs" / "own-estimator.md").read_text("utf-8"), "python"):
        Path(re.match(r"# (\S+)\n", block.text)[1]).write_text(block.text)
    model, one = small_model("bert"), small_inputs("bert")
    inputs = [one | {"input_ids": one["input_ids"].roll(i, -1)} for i in range(8)]
    for name in ("heads", "texts"):
        fb.capture(model, inputs).save(f"{name}.npz")
    return {
        "__name__": "page",
        "fb": fb,
        "model": model,
        "inputs": inputs,
        "tokens": small_inputs("bert", 400)["input_ids"],
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_a_page_runs(name, tmp_path, monkeypatch):
    page = (REPOSITORY / name).read_text("utf-8")
    if not pages.blocks(page, "sh") + pages.blocks(page, "python"):
        pytest.skip("no commands")
    names = prepare()
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    monkeypatch.syspath_prepend(str(tmp_path))
    with ExitStack() as stack:
        if "tcp://host:8786" in page:
            address = stack.enter_context(cluster(tmp_path / "cluster")).address
            names["client"] = stack.enter_context(Client(address))
            page = page.replace("tcp://host:8786", address)
        page = page.replace("seq_len=512", "seq_len=24")
        for line in BEFORE.get(name, []):
            run_line(line)
        for language, text in re.findall(r"^```(sh|python|toml|yaml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
            if language == "toml":
                Path("my-study.toml").write_text(text)
            elif language == "python" and not re.search(ELSEWHERE.get(name, "(?!)"), text):
                if (file := re.match(r"# (\w+\.py)\n", text)) is not None:
                    Path(file[1]).write_text(text)
                exec(compile(text, name, "exec"), names)
            elif language in ("sh", "yaml"):
                for line in lines(text.replace("- run: ", "")):
                    if not re.search(ELSEWHERE.get(name, "(?!)"), line):
                        run_line(line)


def run_line(line):
    """Run a line of a shell, made small; our own commands in this process, which has imported their libraries."""
    line = f"{line} {next((flags for part, flags in SMALLER.items() if part in line), '')}"
    if line.startswith("favorbench ") and not re.search(r"[|<>&;$*?`]", line):
        code, _, said = run(line.removeprefix("favorbench "))
    else:
        done = subprocess.run(["bash", "-ec", line], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        code, said = done.returncode, done.stderr
    assert code == 0, f"{line}\n{said}"


def test_a_line_that_does_not_run_is_noticed():
    with pytest.raises(AssertionError, match="No such option"):
        run_line(f"{sys.executable} -m favorbench sweep --mapz positive")
