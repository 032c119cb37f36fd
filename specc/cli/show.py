"""Print or draw an architecture with shapes, parameters and cost; print a package's overview."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from specc.analysis.length_limits import find_length_limits
from specc.analysis.model_cost import (
    format_dim_formula,
    format_large_number,
    format_parameter_count,
    format_type_with_sizes,
    substitute_lengths,
)
from specc.artifact.generation_metadata import GenerationMetadata, parse_generation_metadata
from specc.artifact.manifest import RECORDED_SETTINGS
from specc.artifact.package_index_and_format_versions import PackageIndex
from specc.cli.options import (
    FORCE_OPTION,
    add_option_groups,
    add_spec_arguments,
    is_compiled_model_path,
    open_spec_from_arguments,
    raise_immutable_config_error,
    read_compiled_manifest,
)
from specc.cli.terminal import print_json_result, print_result_line, write_output
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.render import align_table_columns, format_thousands
from specc.diagnostics.suggest import suggest_similar_name
from specc.driver.option_kinds import BOOLEAN_OPTION, STRING_OPTION, Option
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.weights_section_and_load_transforms import count_untied_parameters
from specc.io.output_paths import DRAWING_OUTPUT, HTML_OUTPUT, OutputFileType, resolve_output_path
from specc.io.safe_read import escape_text
from specc.ir.dim import Dim, multiply_dims, sum_dims
from specc.ir.graph import Graph, collect_shape_symbols
from specc.ir.ir_printer_and_lexer import format_ir
from specc.ir.model_definition import DecodeState
from specc.transforms import pass_pipeline
from specc.visualize.architecture_page import (
    ArchitectureView,
    render_architecture_page,
    render_architecture_svg,
)
from specc.visualize.block_tree import WHOLE_MODEL, format_dims, list_model_graphs
from specc.visualize.scope_summary import (
    ScopeSummary,
    graph_to_json,
    iterate_scope_summaries,
    summarize_graph,
)


def is_diagram_requested(args: Namespace) -> bool:
    """Return True if a diagram is requested. Raise E0955 if text output is also requested."""
    if not args.html and not args.svg:
        return False
    if args.ir or args.print_after:
        option = "--ir" if args.ir else "--print-after"
        raise_error(
            "E0955",
            f"`{option}` prints the graph as text and cannot be combined with a diagram",
            helps=[f"remove `{option}`, or remove `--html` and `--svg`"],
        )
    for path, kind, _ in _list_drawings(args):
        resolve_output_path(path, kind, inputs=_list_input_files(args), force=args.force)
    return True


Renderer = Callable[[ArchitectureView], str]


def _list_drawings(args: Namespace) -> list[tuple[str, OutputFileType, Renderer]]:
    """Return the path, kind and renderer of each requested diagram."""
    drawings: list[tuple[str, OutputFileType, Renderer]] = [
        (args.html, HTML_OUTPUT, render_architecture_page),
        (args.svg, DRAWING_OUTPUT, render_architecture_svg),
    ]
    return [drawing for drawing in drawings if drawing[0]]


def _list_input_files(args: Namespace) -> Sequence[Path]:
    """Return the input files of the command, so that no output file overwrites them."""
    return [Path(p) for p in (args.spec, args.own, args.config) if p]


if TYPE_CHECKING:
    from specc.artifact.manifest import Manifest
    from specc.ir.model_definition import ModelDefinition
    from specc.runtime.model_package import ModelPackage

BEAM_SETTINGS = ("num_beams", "num_return_sequences", "length_penalty", "early_stopping")
"""Settings that apply only to beam search."""

OPTIONS: Mapping[str, Option] = {
    "dims": Option(
        STRING_OPTION, "batch=8,seq=4096", "sizes of symbolic dimensions (default: print formulas)"
    ),
    "ir": Option(BOOLEAN_OPTION, "", "print the graph as textual IR, one line per node"),
    "print_after": Option(
        STRING_OPTION,
        "PASS",
        "print the graph after this compiler pass: "
        + ", ".join(each.name for each in pass_pipeline.ALL_PASSES),
    ),
    "html": Option(
        STRING_OPTION, "OUT.html", "write an HTML page with blocks, formulas, source lines and cost"
    ),
    "svg": Option(STRING_OPTION, "OUT.svg", "write an SVG diagram of the architecture"),
    **FORCE_OPTION,
}


def add_show_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc show`."""
    add_spec_arguments(parser, "compiled model, package, ")
    add_option_groups(parser, output=OPTIONS)


def execute_show_command(args: Namespace) -> int:
    """Print the tree of scopes, the IR (`--ir`), or an overview of a package if `--graph` is not
    set. With `--html` or `--svg`, write diagrams to files instead of printing the tree.
    """
    if (args.config or args.set) and is_compiled_model_path(args.spec):
        raise_immutable_config_error(args.spec)
    if is_diagram_requested(args):
        return _draw_architecture(args)
    prints_ir = args.ir or args.print_after
    if _is_whole_package(args) and not prints_ir:
        from specc.runtime.model_package import open_package

        return _print_text("\n".join(format_package_overview(open_package(args.spec))))
    manifest = _read_manifest(args)
    if manifest is not None and manifest.decoding is not None:
        if args.print_after:
            _raise_unknown_pass(args.print_after, "no pass runs on a standalone generator")
        return _print_text("\n".join(_describe_generator(manifest)))
    if prints_ir:
        return _print_text(format_ir(*_run_requested_passes(args, manifest).graphs()).rstrip("\n"))
    graph, parameter_count = load_graph(args, manifest)
    sizes = parse_dimension_sizes(args.dims, graph)
    lines = format_scope_tree(graph, sizes, format_parameter_count(graph, parameter_count))
    if not print_json_result(graph_to_json(graph, sizes, parameter_count)):
        print("\n".join(lines))
    return 0


def _draw_architecture(args: Namespace) -> int:
    """Write the requested diagrams of an architecture and print their paths."""
    architecture, drawings = _load_architecture(args), _list_drawings(args)
    for path, kind, render in drawings:
        content = render(architecture).encode("utf-8")
        write_output(path, kind, content, inputs=_list_input_files(args), force=args.force)
        print_result_line(f"{escape_text(path)} written", to_stderr=True)
    print_json_result({"files": [path for path, _, _ in drawings]})
    return 0


def _print_text(text: str) -> int:
    """Print text, or a JSON object if `--format json` is set. Return the exit status 0."""
    if not print_json_result({"text": text}):
        print(text)
    return 0


def _load_architecture(args: Namespace) -> ArchitectureView:
    """Load a spec, model or package as an `ArchitectureView`. Raise E0956 if no graph exists."""
    model: Manifest | ModelDefinition
    if _is_whole_package(args):
        manifests = _load_manifests(args.spec)
        model = next(iter(manifests.values()))
        graphs = {role: manifest.graph for role, manifest in manifests.items()}
        count_text = format_parameter_count(*load_graph(args, model))
    elif (manifest := _read_manifest(args)) is None:
        model = elaborate_spec(open_spec_from_arguments(args), args.graph)
        graphs = list_model_graphs(model)
        count_text = format_parameter_count(model.graph, count_untied_parameters(model.graph))
    elif manifest.decoding is not None:
        raise_error(
            "E0956",
            f"`{escape_text(args.spec)}` is a standalone generator and has no graph to draw",
            helps=["draw its spec, or a package compiled with `--graphs all`"],
        )
    else:
        model, graphs = manifest, {WHOLE_MODEL: manifest.graph}
        count_text = format_parameter_count(*load_graph(args, manifest))
    sizes = parse_dimension_sizes(args.dims, next(iter(graphs.values())))
    return ArchitectureView(
        name=model.name, doc=model.doc, graphs=graphs, parameter_count_text=count_text, sizes=sizes
    )


def _load_manifests(path: str) -> "dict[str, Manifest]":
    """Return the manifests of a package's graphs by role, beginning with the full-forward graph.
    Raise E0956 if the package is a standalone generator.
    """
    from specc.runtime.model_package import open_package

    package = open_package(path)
    graph_names = [name for name in package.graph_names if package.has_manifest(name)]
    manifests = {name: package.read_manifest(name) for name in graph_names}
    graphs = {role: m for role, m in manifests.items() if m.decoding is None}
    if not graphs:
        raise_error(
            "E0956",
            f"`{escape_text(path)}` has no graph to draw",
            helps=["draw its spec, or compile a package of it with `--graphs all`"],
        )
    return dict(sorted(graphs.items(), key=lambda item: item[0] != "score"))


def _run_requested_passes(
    args: Namespace, manifest: "Manifest | None"
) -> pass_pipeline.CompilerPassState:
    """Run the passes up to `--print-after` and return the resulting graphs. If `--print-after` is
    not set, run no pass.
    """
    names = [compiler_pass.name for compiler_pass in pass_pipeline.ALL_PASSES]
    if args.print_after and args.print_after not in names:
        hint = f"the passes are {', '.join(names)}"
        _raise_unknown_pass(args.print_after, *suggest_similar_name(args.print_after, names, hint))
    state = _build_pass_state(args, manifest)
    if not args.print_after:
        return state
    return pass_pipeline.run_passes(state, pass_pipeline.list_passes_up_to(args.print_after))


def _raise_unknown_pass(name: str, *helps: str) -> NoReturn:
    raise_error("E0890", f"unknown pass `{escape_text(name)[:60]}`", helps=helps)


def _build_pass_state(
    args: Namespace, manifest: "Manifest | None"
) -> pass_pipeline.CompilerPassState:
    """Return the elaborated graph and the other graphs on which the passes run."""
    model: Manifest | ModelDefinition
    if manifest is None:
        model = elaborate_spec(open_spec_from_arguments(args), args.graph)
        generation = model.generation
    else:
        model, generation = manifest, manifest.generate_section
    return pass_pipeline.CompilerPassState(
        graph=model.graph, defaults=model.defaults, generation=generation, streaming=model.streaming
    )


Row = tuple[str, str, str, str, str]
"""A line of the tree: scope, shape, weights, multiply-adds (with and without blocked attention)."""


def format_scope_tree(graph: Graph, sizes: Mapping[str, int], count_text: str) -> list[str]:
    """Format a graph as lines: inputs, the tree of scopes, results and totals."""
    rows = [("", "output", "weights", "multiply-adds", "if dense")]
    tree = summarize_graph(graph, sizes)
    rows += [
        _format_row(graph, depth, part, sizes) for depth, part in iterate_scope_summaries(tree)
    ]
    if not tree.sum_over_subtree("saved_multiply_adds").terms:
        rows = [(*row[:4], "") for row in rows]
    lines = [
        f"input   {n}: {format_type_with_sizes(v.type, sizes)}" for n, v in graph.inputs.items()
    ]
    lines += align_table_columns(rows)
    lines += [
        f"result  {n}: {format_type_with_sizes(v.type, sizes)}" for n, v in graph.outputs.items()
    ]
    saved = tree.sum_over_subtree("saved_multiply_adds")
    total = substitute_lengths(tree.sum_over_subtree("multiply_adds") - saved, sizes).number
    return [*lines, count_text, *([f"{format_large_number(total)} multiply-adds"] if total else [])]


def _format_row(graph: Graph, depth: int, node: ScopeSummary, sizes: Mapping[str, int]) -> Row:
    op = f" ({node.op})" if node.op and not node.children else ""
    repeats = f" × {node.repeats}" if node.repeats > 1 else ""
    shape = format_dims(node.type.shape, sizes) if node.type else ""
    weights, multiply_adds, saved = map(
        node.sum_over_subtree, ("parameter_count", "multiply_adds", "saved_multiply_adds")
    )
    return (
        f"{'  ' * depth}{node.name or graph.name}{repeats}{op}",
        shape,
        format_dim_formula(weights, {}) if weights.terms else "",
        format_dim_formula(multiply_adds - saved, sizes) if multiply_adds.terms else "",
        format_dim_formula(multiply_adds, sizes) if saved.terms else "",
    )


def _is_whole_package(args: Namespace) -> bool:
    """Return True if SPEC is a package and `--graph` does not select one of its graphs."""
    is_package = is_compiled_model_path(args.spec) and not args.spec.endswith(".onnx")
    return is_package and not args.graph


def _read_manifest(args: Namespace) -> "Manifest | None":
    """Return the manifest of a compiled model, or None if SPEC is a spec."""
    is_compiled = is_compiled_model_path(args.spec)
    return read_compiled_manifest(args.spec, args.graph) if is_compiled else None


def _describe_generator(manifest: "Manifest") -> list[str]:
    """Return the generation settings and inputs of a standalone generator, one per line."""
    recorded = manifest.decoding or {}
    omitted = () if recorded.get("strategy") == "beam" else BEAM_SETTINGS
    settings = {n: recorded.get(key) for n, key in RECORDED_SETTINGS.items() if n not in omitted}
    texts = [f"{n} {value}" for n, value in settings.items() if value not in (None, [], ())]
    lines = [f"{manifest.name}: standalone generator ({', '.join(texts)})"]
    lines += [f"input   {name}: {value.type}" for name, value in manifest.graph.inputs.items()]
    return [*lines, "to see its graphs, compile a package: --graphs step"]


def format_package_overview(package: "ModelPackage") -> list[str]:
    """Format an overview of a package: one line per graph and per extra file."""
    rows = _list_files(package.index)
    sizes = [f"{format_thousands(size)} bytes" for _, _, size in rows]
    width = max(map(len, sizes))
    files = align_table_columns(
        (escape_text(role), escape_text(name), size.rjust(width))
        for (role, name, _), size in zip(rows, sizes, strict=True)
    )
    graphs = package.index.graphs
    count = f"{len(graphs)} graph{'' if len(graphs) == 1 else 's'}"
    title = f"package of `{escape_text(package.index.model)}`, {count}"
    return [title, *(f"  {line}" for line in files), *_describe_step_states(package)]


def _list_files(index: PackageIndex) -> list[tuple[str, str, int]]:
    """Return the role, name and size in bytes of every file, graphs first and weights last."""
    named = [*sorted(index.graphs.items()), *sorted(index.extras.items())]
    names = {name for _, name in named}
    rows = [(role, name, index.files[name].bytes) for role, name in named]
    rows += [("weights", n, f.bytes) for n, f in index.files.items() if n not in names]
    # add the weight files that the package does not copy from the checkpoint
    return rows + [("weights", n, f.bytes) for n, f in index.linked_files.items()]


def _describe_step_states(package: "ModelPackage") -> list[str]:
    """Describe the outputs of `encode` and the decode states, or return [] without a step graph."""
    metadata = package.index.metadata
    if "step" not in package.graph_names or not metadata or not package.has_manifest("step"):
        return []
    step_graph = package.read_manifest("step").graph
    generation = parse_generation_metadata(metadata, step_graph, str(package.path))
    rows = [
        ("from `encode`", n, str(step_graph.inputs[n].type), "")
        for n in generation.loop_invariant_inputs
    ]
    for state in generation.states:
        name = state.name.removeprefix("past.")
        rows.append(("kept", name, str(state.type), _describe_state_growth(state, generation)))
    lines = align_table_columns([*map(escape_text, row)] for row in rows)
    return ["between steps", *(f"  {line}" for line in lines)]


def _describe_state_growth(state: DecodeState, metadata: GenerationMetadata) -> str:
    """Describe how the size of a state grows per step, or return "" if the shape is fixed."""
    if state.time_axis is None:
        return ""
    if state.max_positions < inf:
        return f"at most {int(state.max_positions)} positions"
    return "a buffer, in place" if state.name in metadata.in_place_states else "grows"


def load_graph(args: Namespace, manifest: "Manifest | None") -> tuple[Graph, Dim]:
    """Load a spec's or compiled model's graph, and count its parameters."""
    if manifest is not None:
        # tied parameters share an initializer and are counted once
        counts = {
            manifest.initializers[name]: multiply_dims(facts.type.shape)
            for name, facts in manifest.graph.parameter_facts.items()
            if name in manifest.initializers
        }
        return manifest.graph, sum_dims(counts.values())
    graph = elaborate_spec(open_spec_from_arguments(args), args.graph).graph
    return graph, count_untied_parameters(graph)


def parse_dimension_sizes(text: str, graph: Graph) -> Mapping[str, int]:
    """Parse sizes such as `batch=8,seq=4096`. Raise E0407 for unknown names or large sizes."""
    names = collect_shape_symbols(graph.inputs.values())
    limits = find_length_limits(graph)
    sizes_by_name: dict[str, int] = {}
    for part in text.split(",") if text else []:
        name, _, number = (word.strip() for word in part.partition("="))
        if name not in names or not (number.isascii() and number.isdecimal()):
            helps = [f"the dimensions are {', '.join(sorted(names))}"]
            title = f"invalid `--dims` entry `{part}`: expected DIMENSION=SIZE"
            raise_error("E0407", title, helps=helps)
        sizes_by_name[name] = int(number)
        if name in limits and sizes_by_name[name] > limits[name].max_length:
            title = f"`--dims {part}` exceeds the maximum of this model, {limits[name].max_length}"
            raise_error("E0407", title, notes=[limits[name].reason])
    return sizes_by_name
