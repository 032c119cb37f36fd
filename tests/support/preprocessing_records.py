"""Parse preprocessing records from JSON, without a model file."""

from collections.abc import Mapping

from specc.io.json_io import (
    FieldPath,
    JsonReader,
    RaiseFieldError,
    parse_tagged_record,
    raise_invalid_record_error,
)
from specc.preprocessing.preprocessing_records import (
    INPUT_RECORDS,
    OUTPUT_RECORDS,
    InputConfig,
    OutputFormat,
)
from specc.preprocessing.tokenizer_files import TokenizerFile


def parse_input_record(
    value: object,
    path: FieldPath = (),
    report_error: RaiseFieldError = raise_invalid_record_error,
    files: Mapping[str, TokenizerFile] | None = None,
) -> InputConfig:
    """Parse the preprocessing of an input. `files` maps hashes to tokenizer files."""
    return parse_tagged_record(JsonReader(value, path, report_error, files), INPUT_RECORDS)


def parse_output_record(value: object) -> OutputFormat:
    """Parse the postprocessing of an output."""
    return parse_tagged_record(JsonReader(value), OUTPUT_RECORDS)
