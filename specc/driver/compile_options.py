"""The options of one compile, and the graphs that a package can hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.driver.quantize_section import QuantizeOptions
from specc.io.safe_read import escape_text

PACKAGE_GRAPHS = ("score", "encode", "step", "generate")
"""Graphs that a package can hold: the full forward, the encoder, one decoding step
(decoder-with-past), and the whole generation loop in one file.
"""


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of `compile`.

    The parameters come from `weights`, the seed `init`, or the spec's own file; a missing
    head is initialized from the seed `init_missing`, and the `adapter` directory is merged.
    `dtype` is the storage type of float32 matrices, `f16`, `bf16` or `f32`; empty keeps
    that of the checkpoint. `weights_as` is `link`, `copy`, `inline`, or empty for the best.
    `parts` are the graphs of a package (`PACKAGE_GRAPHS`), none for a single model file;
    `names` is the export profile (`specc.driver.profiles`), `settings` the generation settings
    of `generate` (`specc.decode.generation_settings`). `precision` overrides the spec's
    `quantize` section; `for_quantizers` prepares the model for external quantizers.
    """

    output: str
    weights: str = ""
    init: int | None = None
    init_missing: int | None = None
    adapter: str = ""
    target: str = "ort-cpu"
    opset: int = 0
    graph: str = ""
    taps: tuple[str, ...] = ()
    defaults_inside: bool = False
    weights_as: str = ""
    dtype: str = ""
    parts: tuple[str, ...] = ()
    names: str = "specc"
    settings: Mapping[str, object] = field(default_factory=dict)
    precision: QuantizeOptions = field(default_factory=QuantizeOptions)
    for_quantizers: bool = False
    hash_full: bool = False
    force: bool = False
    try_load: bool = True

    @property
    def is_generator_file(self) -> bool:
        """Whether the output is a single file that holds the generation loop."""
        return self.parts == ("generate",) and self.output.endswith(".onnx")

    @property
    def is_package(self) -> bool:
        """Whether the output is a package directory."""
        return bool(self.parts) and not self.is_generator_file


def parse_graph_names(said: object) -> tuple[str, ...]:
    """Return the graphs of a package, from a list of names, a comma-separated string or
    `all`. Raise E0754 for unknown names.
    """
    if said == "all":
        return PACKAGE_GRAPHS
    names = said.split(",") if isinstance(said, str) else said
    if not isinstance(names, list | tuple | set | frozenset):
        _fail_unknown_graph(said)
    for name in names:
        if name not in PACKAGE_GRAPHS:
            _fail_unknown_graph(name)
    return tuple(graph for graph in PACKAGE_GRAPHS if graph in names)


def _fail_unknown_graph(name: object) -> NoReturn:
    raise_error(
        "E0754",
        f"a package has no graph called `{escape_text(str(name))[:60]}`",
        helps=[f"graphs are {', '.join(PACKAGE_GRAPHS)}, and `all`"],
    )
