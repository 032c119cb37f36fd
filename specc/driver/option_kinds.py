"""Types of options: the valid Python values and the declaration for `argparse`.

Option tables declare command-line flags and validate the arguments of the Python API.
"""

import os
from argparse import ArgumentTypeError, _ActionsContainer
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

from specc.diagnostics.diagnostic import Diagnostic, SpeccError
from specc.io.safe_read import escape_text


class OptionType(NamedTuple):
    """An option type: a description of the valid Python values, a predicate for them, the
    declaration for `argparse`, and the conversion to the type of the field in `CompileOptions`.
    """

    description: str
    accepts: Callable[[Any], bool]
    argparse_arguments: Mapping[str, Any] = {}
    convert: Callable[[Any], Any] = lambda value: value


class Option(NamedTuple):
    """An option of a command. `flag` is the command-line flag if it differs from the option name.
    `extra_arguments` are additional arguments of `add_argument`, such as the default.
    """

    kind: OptionType
    placeholder: str
    help: str
    flag: str = ""
    extra_arguments: Mapping[str, Any] = {}


def make_int_parser(minimum: int, maximum: int, noun: str) -> Callable[[str], int]:
    """Return a parser of integers from `minimum` to `maximum`. `noun` names the integer in
    messages.
    """

    def parse(text: str) -> int:
        # `isdigit` also accepts non-ASCII digits, and `int` accepts at most 4300 digits
        is_short_integer = text.isascii() and text.isdigit() and len(text) <= 20
        if not is_short_integer or not minimum <= int(text) <= maximum:
            raise ArgumentTypeError(f"{noun} must be an integer from {minimum} to {maximum}")
        return int(text)

    return parse


parse_seed = make_int_parser(0, 2**64 - 1, "a seed")


def _is_path(value: object) -> bool:
    # bytes are valid paths in Python, but error messages contain paths, which must be str
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return isinstance(value, str)


def _is_int(value: object) -> bool:
    # bool is an Integral, but a bool is not a valid seed
    return not isinstance(value, bool) and isinstance(value, Integral)


def is_non_negative_int(value: object) -> bool:
    """Return True if a value is an integer from 0 to 2**31 - 1."""
    # check the type first, because `value in range(…)` compares other types with every integer
    return _is_int(value) and value in range(2**31)


def _is_string_list(value: object) -> bool:
    # a str is also a sequence of str
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and all(isinstance(item, str) for item in value)
    )


def make_choice_option_type(choices: Iterable[str], default: str = "") -> OptionType:
    """Return the type of an option with fixed choices. Python callers may also pass ""."""
    choices = tuple(choices)
    return OptionType(
        "one of " + ", ".join(f'"{word}"' for word in choices),
        lambda value: isinstance(value, str) and value in ("", *choices),
        {"choices": choices, "default": default},
    )


PATH_OPTION = OptionType(
    "a path (str or `Path`)", _is_path, {"default": ""}, lambda v: os.fspath(v) if v else ""
)
STRING_OPTION = OptionType("a string", lambda value: isinstance(value, str), {"default": ""})
INTEGER_OPTION = OptionType("an integer", _is_int, {"type": int, "default": 0}, int)
BOOLEAN_OPTION = OptionType(
    "True or False", lambda value: isinstance(value, bool), {"action": "store_true"}
)
OVERRIDE_OPTION = BOOLEAN_OPTION._replace(
    argparse_arguments={"action": "store_true", "default": None},
    convert=lambda value: value or None,
)
"""A boolean option. True overrides the setting of the spec; False keeps it."""
COUNT_OPTION = OptionType(
    "an integer, 0 or more", is_non_negative_int, {"type": int, "default": 0}, int
)
OPTIONAL_INTEGER = OptionType(
    "None or an integer",
    lambda value: value is None or _is_int(value),
    {"type": int},
    lambda value: None if value is None else int(value),
)
SEED_OPTION = OPTIONAL_INTEGER._replace(argparse_arguments={"type": parse_seed})
STRING_LIST_OPTION = OptionType(
    "a list of strings", _is_string_list, {"action": "append", "default": []}, tuple
)

SPEC_OPTIONS: Mapping[str, Option] = {
    "own": Option(
        STRING_OPTION,
        "FILE",
        "spec for a checkpoint directory (default: the built-in spec for the `model_type` in "
        "config.json)",
        "--spec",
    ),
    "config": Option(PATH_OPTION, "FILE|DIR", "read config values from a config.json"),
    "set": Option(
        OptionType(
            "None or a mapping of config names to values",
            lambda value: value is None or isinstance(value, Mapping),
            STRING_LIST_OPTION.argparse_arguments,
        ),
        "KEY=VALUE",
        "set a config value, for example layers=2",
    ),
    "context_length": Option(
        OptionType(
            "a number of tokens, or 0",
            is_non_negative_int,
            {"type": make_int_parser(1, 2**31 - 1, "a context length"), "default": 0},
        ),
        "N",
        "maximum sequence length for dynamic and longrope RoPE scaling",
    ),
    "graph": Option(
        STRING_OPTION,
        "NAME",
        "graph of the spec (default: the graph for "
        "`architectures` in config.json, or the first graph)",
    ),
}
"""Options for opening a spec."""


def add_options_to_parser(parser: _ActionsContainer, options: Mapping[str, Option]) -> None:
    """Declare a command-line flag for each option in a table."""
    for name, option in options.items():
        metavar = {"metavar": option.placeholder} if option.placeholder else {}
        flags = (option.flag or f"--{name.replace('_', '-')}").split()
        keywords = {**option.kind.argparse_arguments, **metavar, **option.extra_arguments}
        parser.add_argument(*flags, dest=name, help=option.help, **keywords)


def check_argument_values(
    types: Mapping[str, OptionType], arguments: Mapping[str, object], code: str = "E0820"
) -> None:
    """Raise one error with the code `code` for each argument with an invalid value."""
    invalid_names = [
        n for n, value in arguments.items() if n in types and not types[n].accepts(value)
    ]
    if invalid_names:
        # shorten the repr, which may be very long
        value_texts = {name: escape_text(repr(arguments[name]))[:60] for name in invalid_names}
        titles = [
            f"`{name}` is {types[name].description}, not {value_texts[name]}"
            for name in invalid_names
        ]
        raise SpeccError(*(Diagnostic(code, title) for title in titles))
