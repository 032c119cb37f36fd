"""Format diagnostics for other programs: JSON Lines, SARIF 2.1.0, and the process exit code of each
diagnostic code.
"""

import json
from collections.abc import Iterable
from enum import Enum

from specc.diagnostics.diagnostic import Diagnostic, Label, Span
from specc.diagnostics.render import escape_control_characters


def span_to_json(span: Span) -> dict[str, object]:
    """Convert a span to JSON: 1-based lines and columns, 0-based character and byte offsets."""
    source = span.source
    line, column = source.get_line_and_column(span.start)
    end_line, end_column = source.get_line_and_column(span.end)
    start_byte = len(source.text[: span.start].encode("utf-8", "replace"))
    return {
        "file": source.name,
        "line": line,
        "column": column,
        "end_line": end_line,
        "end_column": end_column,
        "start": span.start,
        "end": span.end,
        "start_byte": start_byte,
        "end_byte": start_byte + len(span.text.encode("utf-8", "replace")),
    }


def diagnostic_to_json(diagnostic: Diagnostic) -> dict[str, object]:
    """Convert a diagnostic to a JSON object."""
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity,
        "message": diagnostic.title,
        "labels": [
            {**span_to_json(label.span), "text": label.text, "primary": label is diagnostic.primary}
            for label in diagnostic.labels
        ],
        "notes": list(diagnostic.notes),
        "helps": list(diagnostic.helps),
        "fixes": [{**span_to_json(fix.span), "text": fix.text} for fix in diagnostic.fixes],
        **({"count": diagnostic.count} if diagnostic.count > 1 else {}),
    }


def format_json_lines(diagnostics: Iterable[Diagnostic]) -> str:
    """Format diagnostics as JSON Lines."""
    return "".join(json.dumps(diagnostic_to_json(d)) + "\n" for d in diagnostics)


def format_sarif(diagnostics: Iterable[Diagnostic], version: str, help_uri: str = "") -> str:
    """Format diagnostics as SARIF 2.1.0. `{code}` in `help_uri` is replaced with the diagnostic
    code.
    """
    diagnostics_list = list(diagnostics)
    codes = sorted({d.code for d in diagnostics_list})
    rules: list[dict[str, object]] = [
        {"id": code, **({"helpUri": help_uri.format(code=code)} if help_uri else {})}
        for code in codes
    ]
    driver = {"name": "specc", "version": version, "rules": rules}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "results": [build_sarif_result(d, codes.index(d.code)) for d in diagnostics_list],
            }
        ],
    }
    return json.dumps(log, indent=2) + "\n"


def build_sarif_result(diagnostic: Diagnostic, rule_index: int) -> dict[str, object]:
    """Build the SARIF result of a diagnostic. `rule_index` is the index of the rule in the SARIF
    rules array.
    """
    text = "\n".join(
        [diagnostic.title, *diagnostic.notes, *(f"help: {h}" for h in diagnostic.helps)]
    )
    result: dict[str, object] = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule_index,
        "level": diagnostic.severity,
        "message": {"text": "\n".join(map(escape_control_characters, text.split("\n")))},
    }
    if diagnostic.count > 1:
        result["occurrenceCount"] = diagnostic.count
    if diagnostic.primary is not None:
        result["locations"] = [build_sarif_location(diagnostic.primary)]
    if diagnostic.related_labels:
        result["relatedLocations"] = [
            {"id": n, **build_sarif_location(label)}
            for n, label in enumerate(diagnostic.related_labels)
        ]
    if diagnostic.fixes:
        result["fixes"] = [
            {
                "artifactChanges": [
                    {
                        "artifactLocation": {"uri": file_name_to_uri(fix.span.source.name)},
                        "replacements": [
                            {
                                "deletedRegion": build_sarif_region(fix.span),
                                "insertedContent": {"text": fix.text},
                            }
                        ],
                    }
                ]
            }
            for fix in diagnostic.fixes
        ]
    return result


def build_sarif_location(label: Label) -> dict[str, object]:
    """Build a SARIF location from a label."""
    location: dict[str, object] = {
        "physicalLocation": {
            "artifactLocation": {"uri": file_name_to_uri(label.span.source.name)},
            "region": build_sarif_region(label.span),
        }
    }
    if label.text:
        location["message"] = {"text": escape_control_characters(label.text)}
    return location


def build_sarif_region(span: Span) -> dict[str, int]:
    """Build the SARIF region of a span, with lines and columns."""
    line, column = span.source.get_line_and_column(span.start)
    end_line, end_column = span.source.get_line_and_column(span.end)
    return {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}


def file_name_to_uri(name: str) -> str:
    """Convert a file name to a relative URI reference."""
    # the characters that need no escape in the path of a URI (RFC 3986)
    safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/"
    data = name.replace("\\", "/").encode("utf-8", "replace")
    return "".join(chr(b) if chr(b) in safe else f"%{b:02X}" for b in data)


class ErrorCategory(Enum):
    """The category of an error. The value of a category is the process exit code."""

    WARNING = 0
    INPUT = 1
    """An error in a spec, weights file, model or input."""
    USAGE = 2
    """Invalid command-line arguments."""
    ENVIRONMENT = 3
    """A file cannot be read or written, or a package is missing."""
    MISMATCH = 4
    """`specc verify` found a difference between the model and the reference."""
    INCONCLUSIVE = 5
    """`specc verify` is inconclusive: the model is too sensitive to rounding errors, or `--strict`
    is set and not every subgraph was executed.
    """
    BUG = 70
    """A bug in specc (EX_SOFTWARE in sysexits.h)."""


CODES_BY_CATEGORY = {
    ErrorCategory.USAGE: {
        *("E0200", "E0407", "E0408", "E0525", "E0820", "E0821", "E0822"),
        *("E0832", "E0879", "E0880", "E0885", "E0890", "E0891", "E0921"),
        *("E0981", "E0954", "E0955", "E0957", "E0970", "E0977", "E0983"),
    },
    ErrorCategory.ENVIRONMENT: {
        *("E0426", "E0801", "E0802", "E0804", "E0805", "E0806", "E0810", "E0812", "E0813"),
        *("E0815", "E0874", "E0883", "E0888", "E0902", "E0922", "E0940", "E0968"),
    },
    ErrorCategory.MISMATCH: {"E0855", "E0856", "E0930", "E0980"},
    ErrorCategory.INCONCLUSIVE: {"E0932", "E0933"},
    ErrorCategory.BUG: {"E0986"},
}
"""The diagnostic codes of each category. All other errors have the category INPUT."""


def get_error_category(code: str) -> ErrorCategory:
    """Return the category of a diagnostic code."""
    default = ErrorCategory.WARNING if code.startswith("W") else ErrorCategory.INPUT
    return next((c for c, codes in CODES_BY_CATEGORY.items() if code in codes), default)


def compute_exit_code(codes: Iterable[str]) -> int:
    """Return the process exit code for the diagnostic codes `codes`. The exit code is 0 if `codes`
    is empty, 2 if all errors are in the category USAGE, 3 if all are in ENVIRONMENT, 4 or 5 if
    `specc verify` failed, and 1 otherwise.
    """
    categories = set(map(get_error_category, codes))
    if not categories:
        return 0
    if categories in ({ErrorCategory.USAGE}, {ErrorCategory.ENVIRONMENT}):
        return categories.pop().value
    verify_categories = categories & {ErrorCategory.MISMATCH, ErrorCategory.INCONCLUSIVE}
    return min(
        (category.value for category in verify_categories), default=ErrorCategory.INPUT.value
    )
