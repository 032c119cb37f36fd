"""The PyTorch backend: a spec's graph as an `nn.Module` under the spec's parameter
names, to train it.

    model = specc_torch.module("my.yaml")
    specc_torch.save(model, "my.safetensors")

docs/training.md has the whole of it. `SpecModule(graph)` makes a module of a graph alone.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    # an ImportError nevertheless, which callers with a fallback catch
    raise ModuleNotFoundError(
        "error[E0801]: the torch backend needs the package `torch`, which is not "
        "installed: the extra `torch` brings it",
        name=error.name,
    ) from None

from specc_torch import conv, loop, nn, position, quantized, recurrent, route, rows, tensor
from specc_torch.spec_module import SpecModule
from specc_torch.torch_interpreter import evaluate
from specc_torch.training import Dataset, batch, check_output, module, save

__all__ = [
    "Dataset",
    "SpecModule",
    "batch",
    "check_output",
    "conv",
    "evaluate",
    "loop",
    "module",
    "nn",
    "position",
    "quantized",
    "recurrent",
    "route",
    "rows",
    "save",
    "tensor",
]
