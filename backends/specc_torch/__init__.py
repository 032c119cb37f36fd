"""PyTorch backend: a spec's graph as an `nn.Module` with the spec's parameter names, for training.

    model = specc_torch.module("my.yaml")
    specc_torch.save(model, "my.safetensors")

See docs/training.md. `SpecModule(graph)` builds a module from a graph without a spec.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    # the error is also an ImportError, because callers with a fallback catch ImportError
    raise ModuleNotFoundError(
        "error[E0801]: the torch backend requires the package `torch`, which is not installed: "
        "pip install -e '.[torch]'",
        name=error.name,
    ) from None

from specc_torch import conv, indexing, interpolation, loop, nn, quantized, recurrent, tensor  # noqa: F401
from specc_torch.spec_module import SpecModule
from specc_torch.torch_interpreter import evaluate
from specc_torch.training_module_and_dataset import Dataset, batch, check_output_path, module, save

__all__ = ["Dataset", "SpecModule", "batch", "check_output_path", "evaluate", "module", "save"]
