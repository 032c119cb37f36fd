"""The entry point of the command line: dispatch commands, print diagnostics and set exit codes.

Exit codes: 0 success; 1 invalid input; 2 invalid command line; 3 environment error (a file cannot
be read or written, a package is missing); 4 `verify` or `diff` found a difference; 5 `verify` is
inconclusive; 70 bug in specc; 130 interrupted; 129 and 143 terminated by a signal; 141 broken pipe.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from specc.cli import terminal
from specc.cli.options import UsageError, describe_unknown_option, get_or_add_option_group
from specc.cli.terminal import print_diagnostics
from specc.diagnostics.diagnostic import Diagnostic, SpeccError
from specc.diagnostics.machine_formats_and_exit_codes import ErrorCategory, compute_exit_code
from specc.diagnostics.suggest import find_similar_name, format_suggestion
from specc.io.platform_and_signals import (
    ProcessTerminatedError,
    get_termination_exception,
    install_termination_handlers,
)
from specc.io.safe_read import escape_text
from specc.version import __version__


class Command(NamedTuple):
    """A command: its module in `specc.cli` (imported on demand), its summary, and a usage example
    for help texts and usage errors.
    """

    module: str
    summary: str
    example: str = ""


COMMANDS = {
    "check": Command(
        "check", "check names, shapes, causality and padding of a spec", "check my.specc"
    ),
    "compile": Command(
        "compile_and_export",
        "compile a spec to an ONNX model or a package",
        "compile gpt2 --weights gpt2/ --graphs all -o out/gpt2",
    ),
    "run": Command(
        "run", "run a compiled model, or generate text", 'run out/numbers "de 305" --max-tokens 64'
    ),
    "export": Command(
        "compile_and_export",
        "export a compiled model for Triton Inference Server",
        "export triton digits.onnx -o repository/",
    ),
    "map": Command(
        "map",
        "run batch inference over a data set",
        "map dates.onnx orders.parquet --column text=source -o out/",
    ),
    "verify": Command(
        "verify_and_diff",
        "compare a compiled model with the float64 reference",
        "verify low.onnx --baseline full.onnx --threshold kl=0.001",
    ),
    "new": Command(
        "new_and_lsp",
        "write a new spec from a built-in model or a checkpoint",
        "new rnnsearch my.yaml",
    ),
    "show": Command(
        "show",
        "print the architecture, shapes, weights and cost of a spec or package",
        "show gpt2 --dims batch=1,seq=1024",
    ),
    "diff": Command(
        "verify_and_diff",
        "compare the architectures of two specs, models or packages",
        "diff llama mistral",
    ),
    "fmt": Command("fmt_convert_expand", "reformat specs", "fmt my.specc"),
    "convert": Command(
        "fmt_convert_expand",
        "convert .specc to YAML or back, or GloVe vectors to safetensors",
        "convert my.yaml -o my.specc",
    ),
    "expand": Command(
        "fmt_convert_expand",
        "inline base specs and standard library blocks into one spec",
        "expand my.yaml -o whole.specc",
    ),
    "explain": Command(
        "list_doc_explain", "print the description of a diagnostic code", "explain E0302"
    ),
    "list": Command(
        "list_doc_explain",
        "list built-in specs, model types, blocks, masks, scores and functions",
        "list specs",
    ),
    "doc": Command(
        "list_doc_explain",
        "print the documentation of a spec, block or function",
        "doc attention --source",
    ),
    "lsp": Command("new_and_lsp", "run the language server on stdin and stdout", "lsp --schema"),
    "completion": Command(
        "completion", "print a completion script for bash, zsh or fish", "completion bash"
    ),
}

HIDDEN_COMMANDS = {"_complete": Command("completion", "")}
"""Internal commands, which only completion scripts call."""

MESSAGE_FORMATS = ("full", "short", "json", "sarif")
"""The choices of `--format`. The first choice is the default."""


GARBAGE_COLLECTION_THRESHOLD = 5000
"""Threshold of Python's cyclic garbage collector, in newly allocated objects. Syntax trees and
graphs consist of many objects that form no reference cycles. With Python's default of 700, garbage
collection takes an eighth of the run time of `specc check`.
"""


class StoreNonEmptyAction(argparse.Action):
    """An argparse action that rejects an empty value. For example, `--adapter "$X"` with an unset
    shell variable raises an error instead of being ignored.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Store the value of the option. Raise UsageError if the value is empty."""
        if option_string is not None and values == self.default == "":
            raise argparse.ArgumentError(self, "expected a value, got an empty string")
        vars(namespace)[self.dest] = values


class ArgumentParser(argparse.ArgumentParser):
    """An argparse parser that raises UsageError instead of exiting."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("action", None, StoreNonEmptyAction)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError (E0983) for an invalid command line."""
        command = self.prog.split()[-1]
        unrecognized = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized") and unrecognized[0].startswith("-"):
            options_by_command = {
                name: parser._option_string_actions
                for name, parser in build_command_parsers().items()
            }
            message = describe_unknown_option(
                unrecognized[0], self._option_string_actions, options_by_command
            )
        raise UsageError(
            self.prog, message, COMMANDS[command].example if command in COMMANDS else ""
        )


def build_parser() -> ArgumentParser:
    """Build the top-level parser with the commands and common options."""
    parser = ArgumentParser(
        prog="specc",
        description="Compile specs of attention models and the weights of checkpoints to ONNX.",
        epilog="`specc COMMAND --help` describes a command. Start with: specc list specs",
    )
    parser.add_argument("--version", action="version", version=f"specc {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=ArgumentParser)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.summary, add_help=False)
    return parser


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command has."""
    group = get_or_add_option_group(parser, "diagnostics")
    group.add_argument(
        "--format",
        choices=MESSAGE_FORMATS,
        default=MESSAGE_FORMATS[0],
        help="format of diagnostics (default: full); json also prints results as JSON",
    )
    group.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="print only results and errors, no notes or warnings",
    )
    group.add_argument(
        "--color",
        choices=["auto", "always", "never"],
        default="auto",
        help="color messages (default: auto)",
    )
    group.add_argument(
        "--debug",
        action="store_true",
        help="print tracebacks, and verify the graph after every pass",
    )


def run_main_and_exit() -> NoReturn:
    """Run the `specc` command and exit. Characters that the terminal cannot encode are escaped."""
    # the parent process may have closed stdout or stderr
    if sys.stdout is None or sys.stderr is None:
        null_output = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        sys.stdout, sys.stderr = sys.stdout or null_output, sys.stderr or null_output
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    install_termination_handlers()
    gc.set_threshold(GARBAGE_COLLECTION_THRESHOLD)
    raise SystemExit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run the command in `argv` and return its exit code."""
    try:
        command, arguments = _parse_arguments(argv)
    except UsageError as error:
        print_diagnostics(error.diagnostics, _get_requested_format(argv), "auto")
        return get_exit_code(error.diagnostics)
    except SystemExit as interrupt:
        return interrupt.code if isinstance(interrupt.code, int) else 2
    except KeyboardInterrupt as interrupt:  # the user pressed Ctrl-C while the command was imported
        return _handle_interrupt(interrupt)
    except Exception:
        if termination := get_termination_exception():
            return _handle_interrupt(termination)
        raise
    return _run_command(command, arguments, argv[0])


def _run_command(
    command: Callable[[argparse.Namespace], int], arguments: argparse.Namespace, name: str
) -> int:
    """Run a parsed command, print the error if the command fails, and return the exit code."""
    token = terminal.OUTPUT_SETTINGS.set(
        terminal.OutputSettings(arguments.format, arguments.quiet, name)
    )
    try:
        if arguments.debug:
            from specc.transforms.pass_pipeline import VERIFY_AFTER_PASSES

            VERIFY_AFTER_PASSES.set(True)
        code = command(arguments)
        # flush stdout to report a closed pipe or a full disk, because Python ignores these errors
        # at exit
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        return _handle_interrupt(interrupt)
    except BrokenPipeError:
        _discard_output()
        return 141
    except Exception as error:
        if termination := get_termination_exception():
            return _handle_interrupt(termination)
        if arguments.debug:
            raise
        return _report_failure(error, arguments)
    finally:
        terminal.OUTPUT_SETTINGS.reset(token)


def _report_failure(error: Exception, arguments: argparse.Namespace) -> int:
    """Print the error of a failed command, and return its exit status."""
    if isinstance(error, SpeccError):
        print_diagnostics(error.diagnostics, arguments.format, arguments.color)
        return get_exit_code(error.diagnostics)
    if isinstance(error, OSError | MemoryError):
        _discard_output()
        print_diagnostics([_describe_environment_error(error)], arguments.format, arguments.color)
        return 3
    diagnostic = Diagnostic(
        "E0986",
        f"internal error: {type(error).__name__}: {error}",
        notes=("this is a bug in specc, not an error in your input",),
        helps=("report it with the spec and the command line", "`--debug` prints a traceback"),
    )
    print_diagnostics([diagnostic], arguments.format, arguments.color)
    return ErrorCategory.BUG.value


def _get_requested_format(argv: Sequence[str]) -> str:
    """Return the value of `--format` in an invalid command line."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--format", choices=MESSAGE_FORMATS, default=MESSAGE_FORMATS[0])
    # arguments after `--` are not options
    options = argv[: argv.index("--")] if "--" in argv else argv
    try:
        return str(parser.parse_known_args(options)[0].format)
    except argparse.ArgumentError:  # the value of `--format` is unknown
        return MESSAGE_FORMATS[0]


def _handle_interrupt(interrupt: KeyboardInterrupt) -> int:
    """Report an interrupt or a termination signal, and return the matching exit status."""
    reason, status = "interrupted", 130  # 130 is the exit status for Ctrl-C
    if isinstance(interrupt, ProcessTerminatedError):
        reason, status = "terminated", interrupt.exit_status
    print(f"{reason}; no further output was written", file=sys.stderr)
    return status


def _discard_output() -> None:
    """Discard buffered output that cannot be written. Otherwise, Python would retry at exit."""
    with suppress(OSError):  # the stream may not have a file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _describe_environment_error(error: OSError | MemoryError) -> Diagnostic:
    """Return E0804 if memory is exhausted, and E0805 for any other system error."""
    if isinstance(error, MemoryError):
        helps = (
            "reduce the sizes, e.g. the batch size or sequence length, or use a machine with "
            "more memory",
        )
        return Diagnostic("E0804", "not enough memory", helps=helps)
    path = f" `{escape_text(error.filename)}`" if error.filename else ""
    text = error.strerror or str(error)
    return Diagnostic("E0805", f"operating system error{path}: {text[:1].lower()}{text[1:]}")


def _parse_arguments(
    argv: Sequence[str],
) -> tuple[Callable[[argparse.Namespace], int], argparse.Namespace]:
    if not argv:
        build_parser().print_help(sys.stderr)
        raise SystemExit(2)
    name = argv[0]
    if name not in COMMANDS and name not in HIDDEN_COMMANDS:
        # `parse_args` exits for help and version options
        if name in ("-h", "--help", "--version"):
            build_parser().parse_args(argv[:1])
        if name.startswith("-"):
            build_parser().error(f"options follow the command: specc COMMAND {escape_text(name)} …")
        suggestion = find_similar_name(name, COMMANDS)
        hint = f"; {format_suggestion(suggestion)}" if suggestion else ""
        build_parser().error(f"unknown command `{escape_text(name)}`{hint}")
    command = {**COMMANDS, **HIDDEN_COMMANDS}[name]
    parser = _build_command_parser(name, command)
    run = vars(_import_command(command))[f"execute_{name.removeprefix('_')}_command"]
    # `parse_intermixed_args` does not support `--`, after which no argument is an option
    parse = parser.parse_args if "--" in argv else parser.parse_intermixed_args
    return run, parse(argv[1:])


def _import_command(command: Command) -> ModuleType:
    return import_module(f"specc.cli.{command.module}")


def _build_command_parser(name: str, command: Command) -> ArgumentParser:
    """Build the argument parser of a command."""
    summary = command.summary
    parser = ArgumentParser(
        prog=f"specc {name}", description=summary[:1].upper() + summary[1:], allow_abbrev=False
    )
    vars(_import_command(command))[f"add_{name.removeprefix('_')}_arguments"](parser)
    add_common_options(parser)
    if command.example:
        parser.epilog = f"Example: specc {command.example}" + (
            f". {parser.epilog}" if parser.epilog else ""
        )
    return parser


def build_command_parsers() -> dict[str, ArgumentParser]:
    """Return the parser of every command, for completion and the command-line reference."""
    return {name: _build_command_parser(name, command) for name, command in COMMANDS.items()}


def get_exit_code(diagnostics: Sequence[Diagnostic]) -> int:
    """Return the exit status for the diagnostics of a command. Warnings do not change the exit
    status.
    """
    return compute_exit_code(d.code for d in diagnostics if d.severity == "error")
