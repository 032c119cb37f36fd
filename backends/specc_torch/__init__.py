"""The PyTorch backend: a spec's graph as an `nn.Module` under the spec's parameter
names, to train it.

`SpecModule(graph)` starts with seeded weights; `module.save(path)` writes what
`compile --weights` reads.
"""

from specc_torch import (
    conv,
    loop,
    nn,
    position,
    quantized,
    recurrent,
    route,
    rows,
    tensor,
)
from specc_torch.module import SpecModule
from specc_torch.table import evaluate

__all__ = [
    "SpecModule",
    "conv",
    "evaluate",
    "loop",
    "nn",
    "position",
    "quantized",
    "recurrent",
    "route",
    "rows",
    "tensor",
]
