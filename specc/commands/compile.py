"""Compile a spec to an ONNX model."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from specc import messages
from specc.commands.spec_options import seed, spec_arguments, spec_of
from specc.compiling import Options, compile_spec
from specc.packaging import PARTS, compile_package
from specc.profiles.dress import PROFILES
from specc.text.diagnostic import fail

DECODING = ("strategy", "beams", "n_best", "length_penalty", "repetition_penalty")


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    spec_arguments(parser)
    parser.add_argument("-o", "--output", required=True, metavar="MODEL.onnx|DIR")
    parser.add_argument(
        "--for",
        type=parts,
        default=(),
        dest="parts",
        metavar="PARTS",
        help="make a package, a folder: score, encode, step, generate (several with commas), or all",
    )
    parser.add_argument(
        "--names", choices=PROFILES, default="specc", help="names of a package's inputs and outputs, for other programs"
    )
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
    group = parser.add_argument_group("the model that decodes by itself (--for generate)")
    for flag, kind, about in (
        ("--strategy", str, "greedy, sample or beam; the spec's own otherwise"),
        ("--beams", int, "how many beams"),
        ("--n-best", int, "how many texts of a beam search it gives"),
        ("--length-penalty", float, "a beam's score is divided by its length to this power"),
        ("--repetition-penalty", float, "anything but 1 makes it an input"),
    ):
        group.add_argument(flag, type=kind, metavar="X", help=about)
    parser.add_argument("--no-load", action="store_true", help="skip the last gate, loading the model in ONNX Runtime")


def run(given: Namespace) -> int:
    """Compile, and say what was written."""
    if given.names != "specc" and not given.parts:
        fail("E0525", f"`--names {given.names}` is for packages", helps=["add `--for step`"])
    made = (compile_package if given.parts else compile_spec)(
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
            parts=given.parts,
            names=given.names,
            settings={n: vars(given)[n] for n in DECODING if vars(given)[n] is not None},
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


def parts(text: str) -> tuple[str, ...]:
    """The graphs a package is to hold. A step is of no use without what it starts from."""
    wanted = set(PARTS) if text == "all" else set(text.split(","))
    if unknown := wanted - set(PARTS):
        raise ArgumentTypeError(f"{min(unknown)[:40]!r} is none of {', '.join(PARTS)}, all")
    return tuple(p for p in PARTS if p in wanted)


def size_text(size: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
