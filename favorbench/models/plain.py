"""What a module must not be, so that its attention can be heard."""

from importlib import import_module
from typing import Any

from favorbench.errors import ModelError


def check_plain(model: Any) -> None:
    """Raise ModelError for a module that is compiled or quantised: its calls would not come by, or be others."""
    torch = import_module("torch")
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"a torch.nn.Module is needed, not {type(model).__name__}")
    for module in model.modules():
        home = type(module).__module__
        compiled = getattr(module, "_compiled_call_impl", None) is not None or home.startswith("torch._dynamo")
        if compiled or isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"{type(model).__name__} is compiled: give it before torch.compile (its _orig_mod) or torch.jit"
            )
        if home.startswith(("torch.ao.nn.", "bitsandbytes", "torchao", "auto_gptq", "awq")):
            raise ModelError(f"{type(model).__name__} is quantised ({type(module).__name__}): give it unquantised")
    for name, parameter in model.named_parameters():  # a quantiser may be named and have restored all: see the weights
        home = type(parameter.data).__module__
        if not parameter.is_floating_point() or parameter.dtype.itemsize < 2 or home.startswith("torchao"):
            raise ModelError(f"{type(model).__name__} is quantised ({name} is {parameter.dtype}): give it unquantised")
