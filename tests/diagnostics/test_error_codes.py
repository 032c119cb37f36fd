"""Error codes: every used code has a documentation page, a golden message, and an example that
raises it."""

import re
from pathlib import Path

import pytest

from specc.analysis.check_report import analyze_graph
from specc.diagnostics.diagnostic import SpeccError
from specc.diagnostics.machine_formats_and_exit_codes import compute_exit_code, get_error_category
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import LoadedSpec
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.spec_modules import build_module, build_program
from specc.library.spec_file_lookup import SpecLibrary, find_error_doc_pages, parse_page_title
from specc.syntax.parse import decode_spec, parse_spec

ROOT = Path(__file__).parents[2]
CODE = re.compile(r'"([EW]0\d{3})"')
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

ELSEWHERE = {
    "E0969": "tests/lsp/test_open_documents.py",  # internal error
    "E0986": "tests/cli/test_json_results.py",  # internal error
    "E0109": "tests/syntax/test_source_limits.py",  # a spec of more than 1 MiB
    "E0111": "tests/syntax/test_source_limits.py",  # an expression of 10 001 tokens
    # module values, which only Python passes
    "E0416": "tests/backends/torch/test_ties.py",
    # a file that changes while it is read
    "E0512": "tests/weights/formats/test_safetensors.py",
    # the command line accepts only known targets
    "E0822": "tests/backends/onnx/lower/test_opsets.py",
    "E0961": "tests/decode/test_decode_loop.py",  # logits that are NaN
    # a CPU with other integer products
    "E0855": "tests/verification/test_quantized_matmul_check.py",
    # the output contains machine-dependent numbers
    "E0856": "tests/verification/test_quantization_error.py",
    "E0857": "tests/verification/test_quantization_error.py",
    # the message contains machine-dependent numbers
    "E0932": "tests/verification/test_verify_model.py",
    "E0933": "tests/verification/test_round_coverage.py",  # only an option of `verify`
    "E0820": "tests/test_api.py",  # only Python can pass it
    "E0754": "tests/test_api.py",  # the command line has its own message
    # a compiled model whose weights overflow
    "E0980": "tests/runtime/test_half_precision.py",
    "E0981": "tests/runtime/test_static_shapes.py",  # only Python can pass it
    "E0982": "tests/cli/test_expand.py",  # only `expand` raises it
    # interrupted generation
    "E0891": "tests/runtime/test_generate_each.py",
    "E0962": "tests/runtime/test_generation_stream_and_results.py",
    # input and output profiles
    "E0751": "tests/driver/export_profiles/test_unsupported_models.py",
    # only Python can pass it at another time
    "E0978": "tests/runtime/test_streaming_inference.py",
    "E0970": "tests/batch_inference/test_job_data.py",
    # a row of more than 64 MB
    "E0871": "tests/batch_inference/test_formats.py",
    # the error of one row, in the table
    "E0877": "tests/batch_inference/test_job_data.py",
    "E0878": "tests/batch_inference/test_job.py",
    "E0882": "tests/batch_inference/test_job.py",
    # files that change, processes that exit, and missing packages
    "E0881": "tests/batch_inference/test_job_data.py",
    "E0883": "tests/batch_inference/test_job.py",
    "E0888": "tests/batch_inference/test_job.py",
    # only Python can pass it
    "E0946": "tests/runtime/test_training_collator.py",
    "E0947": "tests/runtime/test_training_collator.py",
    "E0949": "tests/test_object_repr.py",
    # an image of more than 64 million pixels
    "E0904": "tests/preprocessing/test_images.py",
    "E0990": "tests/preprocessing/test_padded_images.py",
    "E0991": "tests/preprocessing/test_image_prompts.py",  # needs a model with images and text
}
"""Codes whose message needs too much for a golden file: the test that raises each."""


def find_used_codes() -> dict[str, set[str]]:
    """Return every code in the sources with the files that use it."""
    found: dict[str, set[str]] = {}
    for directory in ("specc", "backends"):
        for path in (ROOT / directory).rglob("*.py"):
            if path == ROOT / "specc" / "diagnostics" / "diagnostic.py":
                continue  # exit status of some codes
            for code in CODE.findall(path.read_text(encoding="utf-8")):
                found.setdefault(code, set()).add(str(path.relative_to(ROOT)))
    return found


PAGES = {p.stem: p for p in sorted((ROOT / "docs" / "errors").glob("[EW]*.md"))}
GOLDEN = sorted((ROOT / "tests" / "golden").glob("errors*/[EW]0*.txt"))


def test_codes_and_pages_agree() -> None:
    assert sorted(find_used_codes()) == sorted(PAGES)
    assert list(find_error_doc_pages()) == sorted(PAGES)


def test_page_headings() -> None:
    texts = {c: p.read_text(encoding="utf-8") for c, p in PAGES.items()}
    headings = {c: text.split("\n")[0] for c, text in texts.items()}
    assert headings == {c: f"# {c}: {parse_page_title(text)}" for c, text in texts.items()}
    assert all(map(parse_page_title, texts.values()))


@pytest.mark.parametrize(
    ("codes", "status"),
    [
        ([], 0),
        (["E0101"], 1),
        (["E0200", "E0525"], 2),
        (["E0802"], 3),
        (["E0200", "E0802"], 1),
        (["E0802", "E0101"], 1),
        (["E0930"], 4),
        (["E0932"], 5),
        (["E0932", "E0930", "E0101"], 4),
    ],
)
def test_exit_status(codes: list[str], status: int) -> None:
    assert compute_exit_code(codes) == status


def test_warnings_have_exit_status_0() -> None:
    assert {get_error_category(code).value for code in PAGES if code.startswith("W")} == {0}
    assert 0 not in {get_error_category(code).value for code in PAGES if code.startswith("E")}


def test_every_code_has_a_golden_message() -> None:
    shown = {p.name[:5] for p in GOLDEN}
    assert sorted(find_used_codes().keys() - shown - ELSEWHERE.keys()) == []
    for code, test in ELSEWHERE.items():
        assert code in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not mention {code}"


def test_golden_files_are_named_after_their_code() -> None:
    messages = {p: p.read_text(encoding="utf-8").partition("----\n")[2] for p in GOLDEN}
    assert not [p.stem for p, message in messages.items() if f"[{p.name[:5]}]" not in message]


def test_page_structure() -> None:
    for code, path in PAGES.items():
        text = path.read_text(encoding="utf-8")
        title, meaning, *rest = text.split("\n\n")
        assert re.fullmatch(rf"# {code}: \S.*[^.]", title), title
        assert len(meaning.splitlines()) <= 8, code
        assert FENCE.search(text), f"{code}: an example"
        assert rest[-1].strip(), f"{code}: how to mend it"


def list_page_examples() -> list[tuple[str, str, str]]:
    """Return code, language and text of every example that is a spec; `text` blocks are not
    specs."""
    return [
        (code, language, body)
        for code, path in PAGES.items()
        for language, body in FENCE.findall(path.read_text(encoding="utf-8"))
        if language != "text"
    ]


def get_check_codes(name: str, text: str) -> set[str]:
    """Return every code that checking a spec reports, including warnings."""
    library = SpecLibrary()
    try:
        module = build_module(parse_spec(decode_spec(text.encode(), name)), name)
        module.directory = ROOT / "specs" / "models"
        found = check_spec(
            LoadedSpec(build_program(module, library), library, ConfigReadOptions(), name)
        )
    except SpeccError as failed:
        return {d.code for d in failed.diagnostics}
    model = found.model or found.trials[0].model
    grows = model.generation
    proved = (
        analyze_graph(model.graph, grows.sequence_input, grows.logits_output, model.defaults)
        if grows
        else analyze_graph(model.graph)
    )
    return {d.code for d in (*found.missing, *found.warnings, *proved.errors, *proved.warnings)}


@pytest.mark.parametrize(
    ("code", "language", "text"), list_page_examples(), ids=lambda v: v if len(v) == 5 else ""
)
def test_page_examples_raise_their_code(code: str, language: str, text: str) -> None:
    assert code in get_check_codes(f"example.{language}", text)
