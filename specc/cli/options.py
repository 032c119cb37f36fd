"""Options that several commands share: spec options and generation settings."""

from argparse import ArgumentParser, Namespace, _ArgumentGroup
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from specc.artifact.package_index_and_format_versions import is_package_directory
from specc.cli.terminal import STDIN_NAME, print_note, read_spec_from_stdin
from specc.decode.setting_names_and_limits import STRATEGIES
from specc.diagnostics.diagnostic import Diagnostic, SpeccError, raise_error
from specc.diagnostics.suggest import find_similar_name, format_suggestion
from specc.driver.option_kinds import (
    BOOLEAN_OPTION,
    OPTIONAL_INTEGER,
    SPEC_OPTIONS,
    STRING_LIST_OPTION,
    STRING_OPTION,
    Option,
    add_options_to_parser,
    make_choice_option_type,
    make_int_parser,
)
from specc.io.output_paths import FORCE_HELP
from specc.io.safe_read import escape_text

if TYPE_CHECKING:
    from specc.artifact.manifest import Manifest
    from specc.driver.spec_loader import LoadedSpec


parse_count = make_int_parser(1, 2**31 - 1, "a count")
INTEGER_OPTION = OPTIONAL_INTEGER._replace(
    argparse_arguments={"type": make_int_parser(0, 2**64 - 1, "it")}
)
FLOAT_OPTION = OPTIONAL_INTEGER._replace(argparse_arguments={"type": float})
COUNT_OPTION = OPTIONAL_INTEGER._replace(argparse_arguments={"type": parse_count})
NO_DEFAULT: Mapping[str, Any] = {"default": None}
PROVIDER_OPTION = Option(
    STRING_OPTION,
    "NAME",
    "ONNX Runtime execution provider: cpu, cuda, … (default: cpu)",
    extra_arguments={"default": "cpu"},
)
FORCE_OPTION = {"force": Option(BOOLEAN_OPTION, "", FORCE_HELP)}
PACKAGE_GRAPH_OPTION = {"graph": Option(STRING_OPTION, "ROLE", "graph of the package to use")}

SAMPLING_OPTIONS: Mapping[str, Option] = {
    "strategy": Option(
        make_choice_option_type(STRATEGIES),
        "",
        "decoding strategy (default: from the spec)",
        extra_arguments=NO_DEFAULT,
    ),
    "max_tokens": Option(
        INTEGER_OPTION, "N", "maximum number of generated tokens (default: from the spec, or 256)"
    ),
    "min_tokens": Option(
        INTEGER_OPTION, "N", "minimum number of generated tokens before a stop token (default: 0)"
    ),
    "no_repeat_ngram_size": Option(
        INTEGER_OPTION, "N", "forbid repeated n-grams of this size (default: 0, off)"
    ),
    "temperature": Option(
        FLOAT_OPTION,
        "T",
        "sampling temperature; values below 1 make the output more deterministic (default: 1)",
    ),
    "top_k": Option(INTEGER_OPTION, "K", "sample from the K most probable tokens (default: all)"),
    "top_p": Option(
        FLOAT_OPTION,
        "P",
        "nucleus sampling: sample from the smallest set of tokens with total probability P "
        "(default: 1)",
    ),
    "min_p": Option(
        FLOAT_OPTION,
        "P",
        "sample from tokens with at least P times the highest probability (default: 0)",
    ),
    "repetition_penalty": Option(
        FLOAT_OPTION, "R", "penalty for tokens that already occur in the sequence (default: 1, off)"
    ),
    "num_beams": Option(
        INTEGER_OPTION, "N", "beam search with N beams (default: 4 with --strategy beam)"
    ),
    "length_penalty": Option(
        FLOAT_OPTION, "A", "beam search: divide scores by length ** A (default: 1)"
    ),
    "num_return_sequences": Option(
        INTEGER_OPTION, "N", "beam search: return the N best sequences (default: 1)"
    ),
    "seed": Option(INTEGER_OPTION, "SEED", "random seed of sampling (default: 0)"),
}
"""Options for token selection. If an option is not given, the setting of the spec applies."""
GENERATION_OPTIONS: Mapping[str, Option] = {
    **SAMPLING_OPTIONS,
    "guidance_scale": Option(
        FLOAT_OPTION,
        "S",
        "scale of classifier-free guidance, e.g. 3 for MusicGen (default: 1, off)",
        extra_arguments=NO_DEFAULT,
    ),
    "stop_strings": Option(
        STRING_LIST_OPTION,
        "TEXT",
        "stop generating before this string; may be repeated",
        "--stop",
        extra_arguments=NO_DEFAULT,
    ),
    "log_probs": Option(
        BOOLEAN_OPTION,
        "",
        "with -o: also write the log-probability of each token",
        extra_arguments=NO_DEFAULT,
    ),
}


def get_or_add_option_group(parser: ArgumentParser, title: str) -> _ArgumentGroup:
    """Return the option group with the given title, adding the group if it is missing."""
    groups = (group for group in parser._action_groups if group.title == title)
    return next(groups, None) or parser.add_argument_group(title)


def add_option_groups(parser: ArgumentParser, **groups: Mapping[str, Option]) -> None:
    """Declare options, grouped by title in the help."""
    for title, options in groups.items():
        add_options_to_parser(get_or_add_option_group(parser, title), options)


def make_output_option(metavar: str, help: str, **options: object) -> Mapping[str, Option]:
    """Return the declaration of the output option `-o`."""
    return {"output": Option(STRING_OPTION, metavar, help, "-o --output", options)}


def add_generation_options(
    parser: ArgumentParser,
    options: Mapping[str, Option] = GENERATION_OPTIONS,
    description: str = "the spec may set other defaults (docs/generation.md)",
) -> None:
    """Declare generation options in the parser of a command."""
    add_option_groups(parser, generation=options)
    get_or_add_option_group(parser, "generation").description = description


def collect_generation_settings(args: Namespace) -> dict[str, Any]:
    """Return the generation options of a command line, by setting name."""
    values = vars(args)
    return {name: values[name] for name in GENERATION_OPTIONS if values.get(name) is not None}


def get_generation_option_flag(name: str) -> str:
    """Return the flag of a generation setting, such as `--top-k` for `top_k`."""
    return GENERATION_OPTIONS[name].flag or f"--{name.replace('_', '-')}"


def add_spec_arguments(parser: ArgumentParser, extra_help: str = "") -> None:
    """Declare the argument SPEC and the options of a spec. `extra_help` is inserted into the help
    of SPEC.
    """
    parser.add_argument(
        "spec",
        metavar="SPEC",
        help="built-in spec (see `specc list specs`), spec file, checkpoint directory with a "
        f"config.json, GGUF file, {extra_help}or - for stdin",
    )
    add_option_groups(parser, input=SPEC_OPTIONS)


def open_spec_from_arguments(args: Namespace, weights: str = "") -> "LoadedSpec":
    """Open the spec of a command line. `weights` is the path of the checkpoint."""
    # import lazily, because commands on compiled models do not need the compiler
    from specc.driver.spec_loader import open_spec

    print_name_conflict_note(args.spec)
    return open_spec(
        read_spec_from_stdin() if args.spec == STDIN_NAME else args.spec,
        config=args.config,
        config_settings=args.set,
        weights=weights,
        checkpoint_spec=args.own,
        context_length=args.context_length,
    )


def print_name_conflict_note(spec: str) -> None:
    """Print a note if a file or directory has the same name as the built-in spec."""
    # import lazily, because commands on compiled models do not need the spec library
    from specc.library.spec_file_lookup import format_shadowing_note

    if note := format_shadowing_note(spec):
        print_note(note)


def is_compiled_model_path(path: str) -> bool:
    """Return True if a MODEL or SPEC argument is a compiled model or a package of graphs."""
    if path.endswith(".onnx") or not is_package_directory(path):
        return path.endswith(".onnx")
    # import lazily, because only a directory argument requires the spec library
    from specc.library.spec_file_lookup import is_builtin_spec

    return not is_builtin_spec(path)


def raise_immutable_config_error(path: str) -> NoReturn:
    """Raise E0957 for config options of a compiled model."""
    raise_error(
        "E0957",
        f"`{escape_text(path)}` is a compiled model: its config values cannot be changed",
        helps=["remove --set and --config, or use its spec"],
    )


def read_compiled_manifest(path: str, graph: str) -> "Manifest":
    """Return the manifest of a compiled model, or of one graph of a package."""
    # import lazily, because commands on specs do not need the runtime
    from specc.runtime.model_package import open_package
    from specc.runtime.single_model_file import read_manifest

    if path.endswith(".onnx"):
        return read_manifest(path)
    package = open_package(path)
    return package.read_manifest(package.resolve_graph_name(graph))


OPTIONS_OF_OTHER_TOOLS: Mapping[str, str] = {
    **dict.fromkeys(("--max-new-tokens", "--max-length", "--n-predict"), "--max-tokens"),
    **dict.fromkeys(("--min-new-tokens", "--min-length"), "--min-tokens"),
    **dict.fromkeys(("--beam-size", "--beams", "--best-of"), "--num-beams"),
    **dict.fromkeys(("--n", "--num-samples"), "--num-return-sequences"),
    **dict.fromkeys(("--stop-strings", "--stop-sequence", "--reverse-prompt"), "--stop"),
    **dict.fromkeys(("--logprobs", "--output-scores"), "--log-probs"),
    **dict.fromkeys(("--fp16", "--half"), "--dtype f16"),
    **dict.fromkeys(("--precision", "--torch-dtype"), "--dtype"),
    **dict.fromkeys(("--max-model-len", "--ctx-size", "--n-ctx"), "--context-length"),
    **dict.fromkeys(("--lora", "--lora-modules", "--peft-model"), "--adapter"),
    **dict.fromkeys(("--kv-cache-dtype", "--cache-type-k"), "--kv-cache int8"),
    **dict.fromkeys(("--device", "--provider", "--ep"), "--execution-provider"),
    **dict.fromkeys(("--checkpoint", "--ckpt", "--model-path"), "--weights"),
    **dict.fromkeys(("--quantization", "--bits"), "--quantize"),
    **dict.fromkeys(("--overwrite", "--yes"), "--force"),
    **dict.fromkeys(("--aggregation", "--grouped-entities"), "--aggregation-strategy"),
    "--temp": "--temperature",
    "--do-sample": "--strategy sample",
    "--repeat-penalty": "--repetition-penalty",
    "--load-in-4bit": "--quantize int4",
    "--load-in-8bit": "--quantize int8-weights",
    "--bf16": "--dtype bf16",
    "--calib-data": "--calibration-data",
    "--top-n": "--top-k",
    "--opset-version": "--opset",
    "--output-dir": "--output",
    "--output-path": "--output",
    "--for-quantizers": "--for-external-quantization",
}
"""Options of transformers, vLLM, llama.cpp, optimum and earlier versions of specc, with the
equivalent specc options.
"""


class UsageError(SpeccError):
    """The error for an invalid command line (E0983)."""

    def __init__(self, command: str, message: str, example: str = "") -> None:
        helps = [f"example: `specc {example}`"] if example else []
        helps.append(f"`{command} --help` lists {'its options' if example else 'the commands'}")
        super().__init__(Diagnostic("E0983", message, helps=tuple(helps)))


def describe_unknown_option(
    option: str, options: Collection[str], options_by_command: Mapping[str, Collection[str]]
) -> str:
    """Return the message for an unknown option. The message suggests the equivalent of another
    tool's option, an option with a similar name, or the commands that have the option.
    """
    option = option.split("=")[0]
    name = option.replace("_", "-")
    equivalent = OPTIONS_OF_OTHER_TOOLS.get(name, name)
    flag = equivalent.split(" ")[0]
    suggestion = equivalent if flag in options else _find_option(name, options)
    if suggestion:
        return f"unknown option `{escape_text(option)}`; {format_suggestion(suggestion)}"
    return f"unknown option `{escape_text(option)}`{_format_commands(flag, options_by_command)}"


def _find_option(name: str, options: Collection[str]) -> str | None:
    """Return an option with a similar name or the only option that begins with `name-`, or None."""
    candidates = [option for option in options if option.startswith(f"{name}-")]
    return find_similar_name(name, options) or (candidates[0] if len(candidates) == 1 else None)


def _format_commands(option: str, options_by_command: Mapping[str, Collection[str]]) -> str:
    """Format the list of commands that have an option. Return "" if no command has it."""
    commands = [
        f"`specc {command}`" for command, flags in options_by_command.items() if option in flags
    ]
    verb = "have" if len(commands) > 1 else "has"
    return f" here; {', '.join(commands)} {verb} `{option}`" if commands else ""
