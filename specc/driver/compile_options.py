"""Options and report of one compile, and the graphs that a package can hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, raise_error
from specc.diagnostics.render import format_repr, group_thousands, render_html_table
from specc.driver.quantize_section import QuantizeOptions
from specc.io.safe_read import escape_text
from specc.ir.model import ModelDefinition

PACKAGE_GRAPHS = ("score", "encode", "step", "generate")
"""Graphs that a package can hold: the full forward, the encoder, one decoding step
(decoder-with-past), and the whole generation loop in one file.
"""


PROFILES = ("specc", "hf", "genai")
"""`specc`: works for every model; `hf`: Optimum and transformers.js; `genai`: onnxruntime-genai."""


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of `compile`.

    The parameters come from `weights`, the seed `init`, or the spec's own file; a missing
    head is initialized from the seed `init_missing`, and the `adapter` directory is merged.
    `dtype` is the storage type of float32 matrices, `f16`, `bf16` or `f32`; empty keeps
    that of the checkpoint. `weights_as` is `link`, `copy`, `inline`, or empty for the best.
    `graphs` are those of a package (`PACKAGE_GRAPHS`), none for a single model file;
    `io_names` is the export profile (`specc.driver.profiles`), `generation_config` the settings
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
    inline_defaults: bool = False
    weights_as: str = ""
    dtype: str = ""
    graphs: tuple[str, ...] = ()
    io_names: str = "specc"
    generation_config: Mapping[str, object] = field(default_factory=dict)
    precision: QuantizeOptions = field(default_factory=QuantizeOptions)
    for_quantizers: bool = False
    hash: str = "header"
    force: bool = False
    no_load: bool = False

    @property
    def is_generator_file(self) -> bool:
        """Return whether the output is a single standalone generator."""
        return self.graphs == ("generate",) and self.output.endswith(".onnx")

    @property
    def is_package(self) -> bool:
        """Return whether the output is a package directory."""
        return bool(self.graphs) and not self.is_generator_file


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
        f"a package has no graph called `{escape_text(name)[:60]}`",
        helps=[f"graphs are {', '.join(PACKAGE_GRAPHS)}, and `all`"],
    )


@dataclass(frozen=True, kw_only=True)
class CompileReport:
    """Result of `compile`: the files written with their sizes, remarks and warnings.

    `forms` lists how each attention is lowered, and why.
    """

    path: Path
    files: tuple[tuple[Path, int], ...]
    model: ModelDefinition
    remarks: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = field(default=())
    forms: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return format_repr(f"compiled {self.model.name}: {self.path}, {self._size}")

    def _repr_html_(self) -> str:
        """Return an HTML table of the written files, for notebooks."""
        return render_html_table(
            f"specc compiled {self.model.name}",
            [
                ("graph", self.model.graph.format_signature()),
                *((str(path), f"{group_thousands(size)} bytes") for path, size in self.files),
                *(("remark", remark) for remark in self.remarks),
                *(("warning", f"{d.code}: {d.title}") for d in self.warnings),
            ],
        )

    @property
    def _size(self) -> str:
        count = len(self.files)
        files = "1 file" if count == 1 else f"{count} files"
        return f"{files}, {group_thousands(sum(size for _, size in self.files))} bytes"
