"""Explain a diagnostic code: cause, example and fix."""

from argparse import ArgumentParser, Namespace

from specc.cli.terminal import print_json_result
from specc.diagnostics.codes import DIAGNOSTIC_CODES
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.suggest import did_you_mean
from specc.io.safe_read import escape_text
from specc.library.spec_reader import list_error_pages


def add_explain_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc explain`."""
    parser.add_argument("code", metavar="CODE", help="a diagnostic code, for example E0302")


def run_explain(args: Namespace) -> int:
    """Print the page of a code."""
    code = normalize_code(args.code)
    if code not in DIAGNOSTIC_CODES:
        suggestion = did_you_mean(code, DIAGNOSTIC_CODES)
        hint = (
            f"did you mean {suggestion}?"
            if suggestion
            else f"codes run from {min(DIAGNOSTIC_CODES)} to {max(DIAGNOSTIC_CODES)}"
        )
        raise_error("E0200", f"unknown code `{escape_text(args.code)[:40]}`", helps=[hint])
    page = list_error_pages()[code].read_text(encoding="utf-8").rstrip()
    entry = DIAGNOSTIC_CODES[code]
    result = {"code": code, "title": entry.line, "status": entry.status, "page": page}
    if not print_json_result("explain", result):
        print(page)
    return 0


def normalize_code(text: str) -> str:
    """Normalize a code: `e302`, `302`, `E0302` and `[E0302]` are the same."""
    text = text.strip("[]: ").upper()
    letter, digits = text[:1], text[1:]
    if text.isdecimal():
        letter, digits = "E", text
    return f"{letter}{digits:0>4}" if digits.isdecimal() and digits else text
