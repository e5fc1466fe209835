"""`favorbench model module:function`: models of images and users' modules are measured on the inputs they return."""

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

import favorbench as fb
from favorbench.errors import ModelError
from favorbench.models.figures import heads
from favorbench.models.plan import BFLOAT16
from favorbench.models.summary import read
from tests.command_line import refused, run
from tests.small_models import small_folder

MODULE = """
import torch
from tests.small_models import small_inputs, small_model
from tests.test_models_modules import own


def vit():
    return small_model("vit"), [small_inputs("vit"), {"pixel_values": torch.randn(1, 3, 16, 16)}]


def words():
    return small_model("vit"), "a text"


class Pyramid(torch.nn.Module):
    def __init__(self, bias=None):
        super().__init__()
        self.linear, self.bias = torch.nn.Linear(4, 4), bias

    def forward(self, x):
        attention = torch.nn.functional.scaled_dot_product_attention
        x = attention(x, x, x)
        x = self.linear(x[:, :, ::2])
        return attention(x, x, x, attn_mask=self.bias)


def pyramid(bias=None):
    torch.manual_seed(0)
    return Pyramid(bias).eval(), torch.randn(1, 2, 16, 4)


def biased():
    return pyramid(torch.linspace(0, 1, 8).expand(8, 8).clone())


class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heard, self.hidden = own()[0][0], torch.nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        x = self.heard(x)
        return x + self.hidden(x, x, x)[0]


def half():
    torch.manual_seed(0)
    return Half().eval(), [torch.randn(1, 12, 16) for _ in range(20)]
"""


@pytest.fixture
def lines(module):
    """Measures a model of the module; the rows by estimator."""
    module("mine", MODULE)

    def measure(name, size=17):
        out = f"out-{name}"
        code, printed, err = run(
            f"model mine:{name} --maps none --methods clusters -R {size} --draws 1 --json --out {out}"
        )
        assert code == 0, err
        return {line["estimator"]: line for line in json.loads(printed)["lines"]}

    return measure


def test_images_are_measured(lines):
    """With a centroid for each of 17 tokens clusters are exact; without attention the output is another."""
    found = lines("vit")
    assert found["clusters"]["texts"] == 2 and found["clusters"]["effect"] < 1e-6 < found["uniform"]["effect"]
    assert found["exact"]["effect"] == 0 < found[BFLOAT16]["effect"] < 1e-3
    assert found["removed"]["head_median"] == pytest.approx(1)
    assert run("report out-vit -q")[0] == run("table out-vit")[0] == 0


def test_a_users_module_is_measured_by_its_output(lines):
    found = lines("own", size=4)
    assert found["uniform"]["effect"] > 1e-6 and found["exact"]["effect"] == 0
    assert run("plot out-own")[0] == 0
    assert {file.stem for file in Path("out-own/figures").glob("*.png")} == {"effect"}  # no hidden states are known


@pytest.mark.parametrize("asked", ["pyramid --layers 0 --seconds 1", "biased"])
def test_a_size_may_exceed_the_keys_of_layers_that_stay_exact(module, asked):
    """Layer 1 has 8 keys; it is not asked for, or has a bias."""
    module("mine", MODULE)
    code, out, err = run(f"model mine:{asked} --maps none --methods clusters -R 12 --draws 1 --out out")
    assert code == 0 and "clusters, m = 12" in out, err


def test_a_size_above_the_keys_of_a_replaced_layer_is_refused(module):
    module("mine", MODULE)
    asked = shlex.split("model mine:pyramid --maps none --methods clusters -R 12 --draws 1 --layers 0,1 --out out")
    assert "allowed: at most 8, the number of keys" in refused(*asked)


BUFFERED = """
import types
import torch

class Buffered(torch.nn.Module):
    buffer = torch.empty(1, 16, 4)

    def forward(self, x):
        self.buffer.copy_(torch.nn.functional.scaled_dot_product_attention(x, x, x)[:, 0])
        return types.SimpleNamespace(logits=self.buffer)

def buffered():
    return Buffered(), torch.randn(1, 1, 16, 4, generator=torch.Generator().manual_seed(0))
"""


def test_a_module_may_write_its_output_into_one_tensor(module):
    """The output of the unchanged model was overwritten by each other one, so that nothing had an effect."""
    module("mine", BUFFERED)
    code, printed, err = run("model mine:buffered --maps none --methods clusters -R 4 --draws 1 --json --out out")
    assert code == 0, err
    found = {line["estimator"]: line["effect"] for line in json.loads(printed)["lines"]}
    assert found["exact"] == 0 < found["clusters"] < found["uniform"]


OUTPUTS = """
import threading
import types
import torch

class Attention(torch.nn.Module):
    def __init__(self, output):
        super().__init__()
        self.linear, self.output = torch.nn.Linear(4, 4), output

    def forward(self, x):
        return self.output(self.linear(torch.nn.functional.scaled_dot_product_attention(x, x, x)))

def of(output):
    torch.manual_seed(0)
    return Attention(output), [2 * torch.randn(1, 1, 16, 4) for _ in range(30)]

def logits(change): return of(lambda x: types.SimpleNamespace(logits=change(x)))
def plain(): return of(lambda x: x)
def stateful():
    Attention.get_extra_state = lambda self: {"calls": 1}
    return plain()
def a_dict(): return of(lambda x: {"logits": x[0]})
def both(): return of(lambda x: (x[0], None))
def arrays(): return of(lambda x: {"logits": x[0].detach().numpy()})
def without_states(): return of(lambda x: types.SimpleNamespace(logits=x[0], last_hidden_state=None))
def spectral():
    model, inputs = plain()
    model.factor = torch.nn.Parameter(torch.tensor(1j))
    pairs = lambda x: torch.view_as_complex(x.unflatten(-1, (2, 2)))
    model.output = lambda x: torch.view_as_real(pairs(x) * model.factor).flatten(-2)
    return model, inputs
def sparse():
    model, inputs = plain()
    model.register_buffer("edges", torch.eye(16).to_sparse())
    model.output = lambda x: (model.edges @ x[0, 0])[None, None]
    return model, inputs
def locked():
    model, inputs = plain()
    model.lock = threading.Lock()
    return model, inputs
def noisy(): return of(lambda x: torch.nn.functional.dropout(x, 0.1))
def score(): return logits(lambda x: x[..., 0, :1])
def curve(): return of(lambda x: x[0, ..., :1])
def pixels(): return logits(lambda x: x.mT.unflatten(-1, (4, 4))[0])
def classes(): return logits(lambda x: x[0])
def masked(): return logits(lambda x: torch.cat([torch.full((1, 16, 3), -torch.inf), x[0]], -1))
"""


@pytest.mark.filterwarnings("default:.*bfloat16")
@pytest.mark.parametrize("command", ["model", "recommend --target 9 --probability 0.5 --model"])
def test_a_module_that_does_not_run_in_bfloat16_is_not_compared_with_it(module, command):
    """It ended in torch's error about a precision that nobody asked for, in `recommend` after all measurements."""
    positions = OUTPUTS.replace("self.linear(", "self.linear(torch.linspace(0, 1, 4) + ")
    module("mine", positions)
    code, printed, err = run(f"{command} mine:plain --maps none --methods clusters -R 4 --out out")
    assert code == 0 and "mine:plain does not run in bfloat16, and is not compared with it: RuntimeError: " in err, err
    assert "uniform" in printed and "model in bfloat16" not in printed
    assert run("table out")[0] == run("report out -q")[0] == 0


def test_a_state_that_is_no_tensor_is_no_weight(module):
    """`get_extra_state` of a module ended in an unexpected AttributeError."""
    module("mine", OUTPUTS)
    code, _, err = run("model mine:stateful --maps none --methods clusters -R 4 --draws 1 --no-heads --out out")
    assert code == 0, err


@pytest.mark.filterwarnings("default:.*bfloat16")
@pytest.mark.parametrize(
    "name",
    [
        "a_dict",  # "returns dict without logits or last_hidden_state"
        "without_states",  # "returns SimpleNamespace without logits or last_hidden_state"
        "spectral",  # "is quantised (factor is torch.complex64)"
        "sparse",  # an unexpected RuntimeError, of the digest of its weights
    ],
)
def test_modules_that_are_refused_no_longer(module, name):
    """Each was refused for a reason that is not so."""
    module("mine", OUTPUTS)
    code, printed, err = run(f"model mine:{name} --maps none --methods clusters -R 4 --draws 1 --json --out out")
    assert code == 0, err
    found = {line["estimator"]: line["effect"] for line in json.loads(printed)["lines"]}
    assert found["exact"] == 0 < found["clusters"] < found["uniform"]
    model, inputs = importlib.import_module("mine").__dict__[name]()
    assert fb.capture(model, inputs[:1]).query.shape == (1, 16, 4)


PADDED = """
import torch

class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, mask):
        attention, x = torch.nn.functional.scaled_dot_product_attention, x[:, None]
        return self.linear(attention(x, x, x, mask[:, None, None]))[:, 0]

class Named(Masked):
    def forward(self, x, attention_mask):
        return super().forward(x, attention_mask)

class Memory(Masked):
    def forward(self, x, memory, mask):
        attention, (query, key) = torch.nn.functional.scaled_dot_product_attention, (x[:, None], memory[:, None])
        return self.linear(attention(query, key, key, mask[:, None, None]))[:, 0]

def of(kind, *more):
    torch.manual_seed(0)
    mask = torch.arange(16) < torch.tensor([[16], [5]])
    return kind(), [(torch.randn(2, 16, 4), *more, mask)]

def masked(): return of(Masked)
def named(): return of(Named)
def memory(): return of(Memory, torch.randn(2, 16, 4))
"""


@pytest.mark.filterwarnings("default:.*padding")
@pytest.mark.parametrize("name", ["masked", "named", "memory"])
def test_padding_that_counts_is_said(module, name):
    """Its exact output made effects smaller without a word. All queries on a padded memory are tokens.

    Only stderr said so, and nothing did where the module hides warnings.
    """
    module("mine", PADDED)
    module("silent", f"import warnings\nwarnings.filterwarnings('ignore'){PADDED}")
    said, command = [], "model {}:{} --maps none --methods clusters -R 4 --draws 1 --no-heads --out {}"
    for source in ("mine", "silent"):
        code, shown, err = run(command.format(source, name, source))
        assert code == 0, err
        said += [err] * (source == "mine") + [shown, run(f"table {source}")[1]]
    words = "counts padding, whose output stays exact, so that it seems smaller"
    assert [words in " ".join(text.split()) for text in said] == [name == "masked"] * 5


@pytest.mark.filterwarnings("default:.*bfloat16")
def test_a_module_that_cannot_be_copied_is_not_compared_with_bfloat16(module):
    """It ended in an unexpected TypeError, of copying its lock."""
    module("mine", OUTPUTS)
    code, printed, err = run("model mine:locked --maps none --methods clusters -R 4 --draws 1 --no-heads --out out")
    assert code == 0 and "not compared with it: TypeError: cannot pickle '_thread.lock' object" in " ".join(err.split())
    assert "uniform" in printed and "model in bfloat16" not in printed


@pytest.mark.parametrize("name, kind", [("both", "tuple"), ("arrays", "dict")])
def test_outputs_that_are_not_measured_are_refused_with_those_that_are(module, name, kind):
    """A dict with arrays of NumPy was one "without logits"; of (logits, loss) it was not said what is allowed."""
    module("mine", OUTPUTS)
    said = refused(f"model mine:{name} --maps none --methods clusters -R 4 --out out")
    assert f"mine:{name} returns {kind}; allowed: a tensor, or logits or last_hidden_state that are tensors" in said


@pytest.mark.parametrize("name", ["score", "curve"])
def test_one_value_for_each_position_is_refused(module, name):
    """Its softmax and its cosine are always 1, so uniform attention was certified: "attention hardly matters"."""
    module("mine", OUTPUTS)
    said = refused(f"model mine:{name} --maps none --methods clusters -R 4 --out out")
    assert "returns one value for each position, whose softmax and cosine never change: " in said
    model, inputs = importlib.import_module("mine").score()
    with pytest.raises(ModelError, match="one logit for each position, whose softmax never changes"):
        fb.capture(model, inputs, gradients=2)


@pytest.mark.parametrize("command", ["model", "recommend --target 9 --model"])
def test_a_module_that_draws_noise_is_refused(module, command):
    """F.dropout(x, p) drops in eval mode, too: its noise counted as the effect of each replacement, and of bfloat16."""
    module("mine", OUTPUTS)
    said = refused(f"{command} mine:noisy --maps none --methods clusters -R 4 --out out")
    assert "mine:noisy returns another output for the same input: turn off" in said


def test_logits_of_images_are_refused(module):
    """The softmax was one over all pixels and classes."""
    module("mine", OUTPUTS)
    said = refused("model mine:pixels --maps none --methods clusters -R 4 --out out")
    assert "returns logits of 4 axes; allowed: (batch, classes) or (batch, positions, classes)" in said


def test_classes_that_are_masked_change_no_effect(module):
    """All effects were infinite, also those of exact attention, and every replacement went unnoticed."""
    module("mine", OUTPUTS)
    found = {}
    for name in ("classes", "masked"):
        code, printed, err = run(f"model mine:{name} --maps none --methods clusters -R 4 --draws 1 --json --out {name}")
        assert code == 0, err
        found[name] = {line["estimator"]: line for line in json.loads(printed)["lines"]}
    for estimator, line in found["masked"].items():
        assert line["effect"] == pytest.approx(found["classes"][estimator]["effect"], rel=1e-5, abs=1e-7)
        assert line["nonfinite"] == 0 and line["embedding_loss"] < 2
    assert found["masked"]["uniform"]["effect"] > 1e-3


WINDOWS = """
import torch

class Windows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linears = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        for width, linear in zip((4, 32, 4, 32), self.linears):
            parts = x.reshape(-1, 1, width, 4)
            x = x + linear(torch.nn.functional.scaled_dot_product_attention(parts, parts, parts)).reshape(x.shape)
        return x

def windows(): return Windows(), [torch.randn(1, 32, 4) for _ in range(30)]
"""


@pytest.mark.parametrize(
    "command", ["model", "recommend --target 9 --probability 0.5 --max-cost 1e9 --by seconds --model"]
)
def test_all_layers_are_timed_where_they_are_unlike(module, command):
    """The first and the middle one have short windows: a setting that saves seconds was said to take 4 times more."""
    module("mine", WINDOWS)
    seconds = "" if "seconds" in command else "--seconds 1"
    code, _, err = run(f"{command} mine:windows --maps none --methods clusters -R 2 {seconds} --out out")
    assert code == 0, err
    assert json.loads(Path("out/seconds.json").read_text())["layers"] == [0, 1, 2, 3]


def test_a_module_that_was_edited_is_another_model(module):
    """Its weights are the same, so that rows of both would stand in one table."""
    again = shlex.split("model mine:pyramid --maps none --methods clusters -R 4 --draws 1 --no-heads --out out")
    module("mine", MODULE)
    assert run(shlex.join(again))[0] == 0
    module("mine", MODULE.replace("attention(x, x, x)", "attention(3 * x, x, x)"))
    assert "out holds another study: mine has changed; use another --out" in refused(*again)


def test_a_figure_without_projected_errors_has_one_panel(module):
    """The caption said "nan (right)", beside an empty panel."""
    module("mine", MODULE)
    code, _, err = run("model mine:vit --maps none --methods clusters -R 4 --draws 1 --layers all,each --out out -q")
    assert code == 0, err
    (chart,) = heads(read(Path("out")))
    assert len(chart.panels) == 1 and re.search(r"Spearman's correlation: -?[01]\.\d\d\.$", chart.caption)


@pytest.mark.usefixtures("lines")
def test_mistakes_are_one_line(tmp_path):
    Path("text").write_text("w5 w6")
    folder = small_folder(tmp_path / "vit", "vit")
    assert "if it reads images or sound, give module:function" in refused("capture", str(folder))
    reads_images = refused("model", str(folder), "text")
    assert "reads pixel_values, not text" in reads_images and "favorbench model module:function" in reads_images
    assert "leave --text and -L out" in refused("model mine:vit text")
    assert "leave --text and -L out" in refused("model mine:vit -L 16")
    assert re.search("inputs: a tensor, a tuple, .* is needed, not 'a text'", refused("model mine:words"))


def test_attention_that_hides_its_calls_is_a_layer_that_is_left(module):
    """Answers and tables said that all layers are replaced, and each pass of the model printed a line of its own."""
    module("mine", MODULE)
    options = "--maps none --methods uniform --out"
    code, printed, err = run(f"model mine:half {options} run")
    assert code == 0
    assert printed.startswith("all layers but 1 replaced")
    assert err.splitlines() == ["module.hidden is left unchanged: no attention call was found"]
    code, printed, err = run(f"recommend --model mine:half --target 2 --probability 0.5 {options} choice")
    assert code == 0, err
    printed = " ".join(printed.split())
    assert "Candidates replace attention in all layers but 1 " in printed
    assert "multiplications relative to those of exact attention in these. median" in printed
    assert "uniform in all layers but 1, at 0 % of the multiplications of exact attention there and " in printed
    assert "module.hidden is left unchanged: no attention call was found." in printed
