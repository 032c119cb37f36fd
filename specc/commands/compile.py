"""Compile a spec to an ONNX model."""

import sys
from argparse import ArgumentParser, Namespace

from specc import messages
from specc.commands.spec_options import seed, spec_arguments, spec_of
from specc.compiling import Options, compile_spec


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    spec_arguments(parser)
    parser.add_argument("-o", "--output", required=True, metavar="MODEL.onnx")
    parser.add_argument("--weights", default="", metavar="FILE|DIR", help="safetensors to take the weights from")
    parser.add_argument("--init", type=seed, metavar="SEED", help="draw random weights from a seed instead")
    parser.add_argument("--target", choices=["onnx", "ort-cpu", "ort-cuda"], default="ort-cpu")
    parser.add_argument("--opset", type=int, default=0, metavar="N", help="17 to 26; the target has its own otherwise")
    parser.add_argument(
        "--tap", action="append", default=[], metavar="PATTERN", help="also give values inside, by scope"
    )
    parser.add_argument("--defaults", choices=["inside"], help="compute inputs that have a default in the model")
    parser.add_argument("--weights-as", choices=["link", "copy", "inline"], default="", help="how weights are stored")
    parser.add_argument(
        "--hash", choices=["header", "full"], default="header", help="what the model notes of weights files"
    )
    parser.add_argument("--no-load", action="store_true", help="skip the last gate, loading the model in ONNX Runtime")


def run(given: Namespace) -> int:
    """Compile, and say what was written."""
    made = compile_spec(
        spec_of(given, given.weights),
        Options(
            output=given.output,
            weights=given.weights,
            init=given.init,
            target=given.target,
            opset=given.opset,
            graph=given.graph,
            taps=tuple(given.tap),
            defaults_inside=given.defaults == "inside",
            weights_as=given.weights_as,
            hash_full=given.hash == "full",
            try_load=not given.no_load,
        ),
    )
    messages.report(made.warnings, given.format, given.color)
    if given.format in messages.PROGRAMS:
        return 0
    for remark in made.remarks:
        print(f"note: {remark}", file=sys.stderr)
    for path, size in made.files:
        print(f"{path}  {size_text(size)}")
    return 0


def size_text(size: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
