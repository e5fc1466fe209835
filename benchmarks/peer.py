"""The table of a user of performer-pytorch: its FastAttention for each cell, against torch's own attention."""

import importlib
import importlib.util

from benchmarks.plain import Table
from favorbench.engine.plan import Draw
from favorbench.engine.study import Study
from favorbench.inputs import get_input
from favorbench.numerics.streams import stream
from favorbench.samplers import get_sampler

#: The settings of such a user: softmax's positive features, at every R. Both samplers, as FastAttention takes a matrix.
TABLE = {"maps": "positive", "samplers": "iid,orthogonal"}


def installed() -> bool:
    """Whether the library and torch are installed."""
    return importlib.util.find_spec("performer_pytorch") is not None and importlib.util.find_spec("torch") is not None


def table(study: Study, draws: list[Draw]) -> Table:
    """The mse of every cell of every draw on one thread, in the study's precision, from favorbench's inputs and omegas.

    FastAttention adds its eps of 1e-4 to every feature, so its numbers differ.
    """
    torch, performer = importlib.import_module("torch"), importlib.import_module("performer_pytorch.performer_pytorch")
    scenario, errors = study.scenario, {}
    dtype = getattr(torch, scenario.dtype[0])
    torch.set_num_threads(1)
    with torch.inference_mode():
        for draw in draws:
            inputs = get_input("gaussian").draw(stream(scenario.seed, "inputs", *draw.stream_names), draw.head)
            scaled = (inputs.query * draw.scale, inputs.key * draw.scale, inputs.value * scenario.value_scale)
            query, key, value = (torch.from_numpy(array).to(dtype)[None, None] for array in scaled)
            for sampler in scenario.samplers:
                for size in draw.sizes:
                    rng = stream(scenario.seed, "omega", sampler, *draw.stream_names)
                    omega = get_sampler(sampler).sample(rng, size, draw.head.head_dim)
                    attention = performer.FastAttention(draw.head.head_dim, nb_features=size)
                    attention.projection_matrix = torch.from_numpy(omega).to(dtype)
                    exact = torch.nn.functional.scaled_dot_product_attention(query, key, value)
                    error = (attention(query, key, value) - exact).double()
                    errors[draw.trial, "positive", sampler, size] = float((error * error).mean())
    return errors
