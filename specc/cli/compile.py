"""Compile a spec to an ONNX model, or with --graphs to a package of the graphs derived from it."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from specc.cli import terminal
from specc.cli.common_options import (
    add_quantize_arguments,
    add_spec_arguments,
    open_spec_from_arguments,
    parse_quantize_options,
    parse_seed,
)
from specc.cli.generation_options import (
    add_sampling_arguments,
    parse_generation_settings,
    setting_flag,
)
from specc.cli.terminal import FORCE, show_write_progress
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.driver.compile_model import compile_model
from specc.driver.compile_options import CompileOptions, CompileReport, parse_graph_names
from specc.driver.profiles.export_profile import PROFILES
from specc.io.safe_read import escape_text
from specc.library.spec_files import format_shadow_note


def add_compile_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    add_spec_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=parse_output_path,
        metavar="MODEL.onnx|DIR",
        help="output model; with --graphs the output directory",
    )
    _package_arguments(parser)
    _weights_arguments(parser)
    _model_arguments(parser)
    add_quantize_arguments(parser)
    _storing_arguments(parser)
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.add_argument(
        "--no-load",
        action="store_true",
        help="do not load the compiled model in ONNX Runtime as a check",
    )
    add_sampling_arguments(parser, "defaults of a standalone generator (--graphs generate)")


def _weights_arguments(parser: ArgumentParser) -> None:
    """Where the weights come from."""
    parser.add_argument(
        "--weights",
        default="",
        metavar="FILE|DIR",
        help="load weights from safetensors or a checkpoint directory",
    )
    parser.add_argument(
        "--adapter",
        default="",
        metavar="DIR|FILE",
        help="merge a LoRA adapter (peft), or load a language adapter (MMS)",
    )
    parser.add_argument(
        "--init", type=parse_seed, metavar="SEED", help="initialize weights randomly with this seed"
    )
    parser.add_argument(
        "--init-missing",
        type=parse_seed,
        metavar="SEED",
        help="initialize weights of a head that the checkpoint lacks with this seed",
    )


def _storing_arguments(parser: ArgumentParser) -> None:
    """How weights are stored, and how they are known again."""
    parser.add_argument(
        "--weights-as",
        choices=["link", "copy", "inline"],
        default="",
        help="link: external data in the checkpoint; copy: external data next to the model; "
        "inline: inside the model (default: automatic)",
    )
    parser.add_argument(
        "--dtype",
        choices=["f32", "f16", "bf16"],
        help="element type of stored matrices; with --target ort-cuda mixed precision",
    )
    parser.add_argument(
        "--hash",
        choices=["header", "full"],
        default="header",
        help="integrity check of weights at load: size and header, or the full content",
    )


def _model_arguments(parser: ArgumentParser) -> None:
    """What the model is made for, and what it takes and gives."""
    parser.add_argument(
        "--target",
        choices=["onnx", "ort-cpu", "ort-cuda", "openvino"],
        default="ort-cpu",
        help="target runtime: any (onnx), ONNX Runtime on CPU (default) or CUDA, or OpenVINO",
    )
    parser.add_argument(
        "--opset",
        type=int,
        default=0,
        metavar="N",
        help="ONNX opset, 17 to 26 (default: chosen by the target)",
    )
    parser.add_argument(
        "--tap",
        action="append",
        default=[],
        metavar="PATTERN",
        help="output intermediate values with this scope too: layers.*.attn",
    )
    parser.add_argument(
        "--explain", action="store_true", help="print how each attention is lowered, and why"
    )
    parser.add_argument(
        "--inline-defaults",
        action="store_true",
        help="compute inputs with a default inside the model",
    )


def _package_arguments(parser: ArgumentParser) -> None:
    """What a package holds, and whose names it uses."""
    parser.add_argument(
        "--graphs",
        type=parse_parts,
        default=(),
        dest="graphs",
        metavar="PARTS",
        help="compile a package of these graphs, comma-separated: score (full forward pass), "
        "encode and step (encoder, decoder with past), generate (standalone generator), "
        "or all; generate alone may be a single .onnx file",
    )
    parser.add_argument(
        "--io-names",
        choices=PROFILES,
        default="specc",
        help="naming convention of inputs and outputs: specc, Optimum and transformers.js (hf), "
        "or onnxruntime-genai",
    )


def run_compile(given: Namespace) -> int:
    """Compile, and say what was written."""
    _check_belonging(given)
    with show_write_progress("writing weights"):
        made = _compiled(given)
    terminal.print_diagnostics(made.warnings, given.format, given.color)
    told = {
        "files": [{"path": str(path), "bytes": size} for path, size in made.files],
        "notes": list(made.remarks),
        "forms": list(made.forms),
    }
    if terminal.print_json_result("compile", told):
        return 0
    for form in made.forms if given.explain else ():
        print(form)
    for remark in made.remarks:
        if remark != format_shadow_note(given.spec):  # printed when the spec was opened
            terminal.print_note(remark)
    for path, size in made.files:
        terminal.print_done(f"{escape_text(str(path))}  {format_size(size)}")
    return 0


def _compiled(given: Namespace) -> CompileReport:
    """The files of a model, or of a package where parts of one are named."""
    return compile_model(
        open_spec_from_arguments(given, given.weights),
        CompileOptions(
            output=given.output,
            weights=given.weights,
            adapter=given.adapter,
            init=given.init,
            init_missing=given.init_missing,
            target=given.target,
            opset=given.opset,
            graph=given.graph,
            taps=tuple(given.tap),
            defaults_inside=given.inline_defaults,
            weights_as=given.weights_as,
            dtype=given.dtype or "",
            hash_full=given.hash == "full",
            try_load=not given.no_load,
            force=given.force,
            parts=given.graphs,
            names=given.io_names,
            settings=parse_generation_settings(given),
            precision=parse_quantize_options(given),
            for_quantizers=given.for_quantizers,
        ),
    )


def parse_output_path(text: str) -> str:
    """A place to write to: a package must not end up in the current folder for want of a name."""
    if not text:
        raise ArgumentTypeError("it has no name")
    return text


def _check_belonging(given: Namespace) -> None:
    """E0753 for options that mean nothing to what is asked for."""
    # Names of others are those of caches, which the graph of a whole text has none of.
    if given.io_names != "specc" and not {"encode", "step"} & set(given.graphs):
        raise_error(
            "E0753",
            f"`--io-names {given.io_names}` is for packages with a step",
            helps=["add `--graphs step`"],
        )
    decoding = [setting_flag(name) for name in parse_generation_settings(given)]
    if decoding and "generate" not in given.graphs:
        raise_error(
            "E0753",
            f"`{decoding[0]}` is settled in a model that decodes by itself, and none is asked for",
            helps=["add `--graphs generate`", f"or say `{decoding[0]}` when the model is run"],
        )
    # One graph that decodes by itself is the only part that can be a file by itself.
    if given.graphs and given.graphs != ("generate",) and given.output.endswith(".onnx"):
        raise_error(
            "E0753",
            f"`--graphs {','.join(given.graphs)}` makes a folder of several files, "
            f"`{given.output}` is the name of one",
            helps=[f"write `-o {given.output.removesuffix('.onnx')}`"],
        )


def parse_parts(text: str) -> tuple[str, ...]:
    """The graphs a package is to hold. A step is of no use without what it starts from."""
    try:
        return parse_graph_names(text)
    except Failed as failed:
        raise ArgumentTypeError(failed.diagnostics[0].title) from None


def format_size(size: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
