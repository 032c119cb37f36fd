"""`quantize` in a spec is equivalent to the options, in both syntaxes; options override it with a
remark."""

from pathlib import Path

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep

import specc
from specc.cli.main import main
from specc.driver.quantize_section import QuantizeOptions, QuantizeRequest, merge_quantize_options
from specc.frontend.spec_modules import build_program
from specc.library.spec_file_lookup import SpecLibrary

HEAD = "specc 1\nmodel m\nextends gpt2\n"
SMALL = "config { layers = 2  d = 16  heads = 2  vocab = 64  context = 16 }\n"
SAID = """
quantize {
  default = int8
  exclude = "h.0.attn.*"
  int4 = ["h.*.mlp.c_fc", lm_head]
  group_size = 16
  lm_head_bits = none
}
"""
YAML = """\
specc: 1
model: m
extends: gpt2
config: {layers: 2, d: 16, heads: 2, vocab: 64, context: 16}
quantize:
  default: int8
  exclude: [h.0.attn.*]
  int4: ['h.*.mlp.c_fc', lm_head]
  group_size: 16
  lm_head_bits: none
"""


def read_quantize_request(path: Path, asked: QuantizeOptions | None = None) -> QuantizeRequest:
    library = SpecLibrary()
    program = build_program(library.load_spec(str(path)), library)
    return merge_quantize_options(program, asked or QuantizeOptions())


def write_spec(tmp_path: Path, text: str, name: str = "m.specc") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_both_syntaxes_agree(tmp_path: Path) -> None:
    first = read_quantize_request(write_spec(tmp_path, HEAD + SAID)).weight_options
    assert first is not None
    assert (first.kind, first.group_size, first.lm_head_kind) == ("int8", 16, "none")
    assert first.unquantized_patterns == ("h.0.attn.*",)
    assert first.kind_by_pattern == (("h.*.mlp.c_fc", "int4"), ("lm_head", "int4"))
    assert read_quantize_request(write_spec(tmp_path, YAML, "m.yaml")).weight_options == first


def test_bits_per_weight(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, HEAD + SMALL + SAID)
    specc.compile(spec, tmp_path / "m.onnx", init=0)
    manifest = specc.load(tmp_path / "m.onnx").manifest
    bits = {name: one.format.bits for name, one in manifest.quantized.items()}
    assert bits["h.0.mlp.c_fc.weight"] == bits["h.1.mlp.c_fc.weight"] == 4
    assert bits["h.1.attn.c_attn.weight"] == bits["h.0.mlp.c_proj.weight"] == 8
    assert not any(name.startswith("h.0.attn") for name in bits)


def test_small_lm_head(tmp_path: Path) -> None:
    """This also holds if another setting or option selects 8 bits for all other weights."""
    for tied in (False, True):
        specc.compile(
            write_spec(tmp_path, HEAD + SMALL),
            tmp_path / "m.onnx",
            init=0,
            set={"tied": tied},
            quantize="int8",
            lm_head_bits=4,
            force=True,
        )
        manifest = specc.load(tmp_path / "m.onnx").manifest
        bits = {name: one.format.bits for name, one in manifest.quantized.items()}
        assert bits.pop("lm_head.weight") == 4
        assert bits.pop("wte.weight") == (4 if tied else 8)
        assert set(bits.values()) == {8}


ODD = """specc 1
model odd
dims batch
graph main(x: float[batch, 4]) -> (y: float[batch, 4]) {
  x = linear(x, out=4) @ "a[0]"
  x = linear(x, out=4) @ "b?c*"
  return linear(x, out=4) @ "last"
}
"""


@pytest.mark.parametrize("name", ["a[0]", "b?c*"])
def test_exclude_weights_with_special_characters(name: str, tmp_path: Path) -> None:
    specc.compile(
        write_spec(tmp_path, ODD),
        tmp_path / "m.onnx",
        init=0,
        quantize="int8",
        quantize_exclude=[name],
    )
    rounded = specc.load(tmp_path / "m.onnx").manifest.quantized
    assert {"a[0].weight", "b?c*.weight", "last.weight"} - rounded.keys() == {f"{name}.weight"}


def test_section_equals_options(tmp_path: Path) -> None:
    words = "quantize { default = int4  exclude = [wte]  group_size = 32  all = true }\n"
    spec = write_spec(tmp_path, HEAD + SMALL + words)
    plain = write_spec(tmp_path, HEAD + SMALL, "plain.specc")
    given = ["--quantize=int4", "--quantize-exclude=wte", "--group-size=32", "--quantize-all"]
    for path, options in ((spec, []), (plain, given)):
        out = str(path.with_suffix(".onnx"))
        assert main(["compile", str(path), "--init=0", *options, "-o", out]) == 0
    a, b = (specc.load(p.with_suffix(".onnx")) for p in (spec, plain))
    assert a.manifest.quantized == b.manifest.quantized
    assert a.manifest.quantized
    for name, value in a.weights().items():
        assert np.array_equal(value, b.weights()[name])


def test_options_override_the_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_spec(tmp_path, HEAD + SMALL + SAID)
    given = ["compile", str(spec), "--init=0", "-o", str(tmp_path / "m.onnx")]
    assert main([*given, "--quantize", "int8-weights", "--group-size", "64"]) == 0
    err = capsys.readouterr().err
    assert "`--quantize` overrides `default` in the spec" in err
    assert "`--group-size` overrides `group_size` in the spec, which has 16" in err
    manifest = specc.load(tmp_path / "m.onnx").manifest
    assert manifest.quantized["h.1.mlp.c_proj.weight"].format.group_size == 64
    assert manifest.quantized["h.1.mlp.c_fc.weight"].format.bits == 4

    assert main([*given, "--quantize", "none"]) == 0
    assert "no weight is quantized" in capsys.readouterr().err
    assert not specc.load(tmp_path / "m.onnx").manifest.quantized


@pytest.mark.parametrize(
    ("given", "kind", "option"),
    [
        (QuantizeOptions(), "int8", ""),
        (QuantizeOptions(quantize="none"), "", "--quantize none"),
        (QuantizeOptions(quantize="none", kv_cache="int8"), "int8", "--kv-cache"),
    ],
)
def test_quantize_none_overrides_the_section(
    given: QuantizeOptions, kind: str, option: str, tmp_path: Path
) -> None:
    """`--quantize none` also overrides `kv_cache`, but an explicit `--kv-cache` counts."""
    text = f"{HEAD}quantize {{ default = int8  kv_cache = int8 }}\n"
    found = read_quantize_request(write_spec(tmp_path, text), given)
    assert found.kv_cache.dtype == kind
    assert bool(found.remarks) == bool(option)
    assert not option or f"`{option}` overrides `kv_cache`" in found.remarks[-1]


def test_derived_spec_overrides_its_base(tmp_path: Path) -> None:
    write_spec(tmp_path, HEAD + SAID, "base.specc")
    text = 'specc 1\nmodel n\nextends "base.specc"\n'
    near = text + 'quantize { default = none  int8 = "h.*.mlp.c_fc" }\n'
    wish = read_quantize_request(write_spec(tmp_path, near, "near.specc")).weight_options
    assert wish is not None
    assert wish.kind is None
    assert (wish.group_size, wish.unquantized_patterns) == (16, ("h.0.attn.*",))
    assert wish.kind_by_pattern[-1] == ("h.*.mlp.c_fc", "int8")


@pytest.mark.parametrize(
    "words", ["", "exclude = wte", "default = none", "default = none  lm_head_bits = 8"]
)
def test_section_without_quantization(words: str, tmp_path: Path) -> None:
    assert (
        read_quantize_request(
            write_spec(tmp_path, f"{HEAD}quantize {{ {words} }}\n")
        ).weight_options
        is None
    )


@pytest.mark.parametrize(
    "words",
    sample_sweep(
        [
            "default = int5",
            "default = [int8, int4]",
            "default = []",
            'lm_head_bits = "int8-weights"',
            "all = 1",
            "group_size = 1.5",
            "group_size = -16",
            'group_size = "\\u{1}"',
            "group_size = [16, 32]",
            'group_size = "99999999999999999999"',
        ]
    ),
)
def test_invalid_values(words: str, tmp_path: Path) -> None:
    with pytest.raises(specc.SpeccError, match="E0858"):
        specc.check(write_spec(tmp_path, f"{HEAD}quantize {{ {words} }}\n"))


@pytest.mark.parametrize("size", sample_sweep([0, 8, 24, 512, 999999999]))
def test_unsupported_group_size(size: int, tmp_path: Path) -> None:
    words = f"quantize {{ default = int4  group_size = {size} }}\n"
    spec = write_spec(tmp_path, HEAD + words)
    with pytest.raises(specc.SpeccError, match="E0853") as failed:
        specc.check(spec)
    (one,) = failed.value.diagnostics
    assert one.primary
    assert one.primary.span.text == f"group_size = {size}"
    assert "a power of two from 16 to 256" in one.helps[0]


@pytest.mark.parity
def test_pattern_of_another_graph(tmp_path: Path) -> None:
    words = 'quantize { default = int8  exclude = "classifier" }\n'
    specc.check(write_spec(tmp_path, HEAD + words))
    wrong = 'quantize { default = int8  exclude = "clasifier" }\n'
    with pytest.raises(specc.SpeccError, match="E0850"):
        specc.check(write_spec(tmp_path, HEAD + wrong))


def test_unmatched_pattern_suggests_a_pattern(tmp_path: Path) -> None:
    words = 'quantize { default = int8  exclude = "h.*.attn.c_atn" }\n'
    with pytest.raises(specc.SpeccError) as failed:
        specc.check(write_spec(tmp_path, HEAD + words))
    assert failed.value.diagnostics[0].helps == ("did you mean `h.*.attn.c_attn`?",)


def test_quantized_prefix_lm_with_empty_prompt(tmp_path: Path) -> None:
    """The embedding of an empty prompt is quantized too."""
    out = tmp_path / "lm.onnx"
    sizes = {"vocab": 17, "d": 16, "heads": 2, "layers": 2, "hidden": 24, "context": 32}
    specc.compile("prefix_lm", out, set=sizes, init=1, graphs="generate", quantize="int8")
    writing = specc.load(out).generate(prompt=[[3, 4, 5]], ids=[[]], max_tokens=3)
    assert len(list(writing)) == 3


INPUTS = "quantize {{ default = int4  all = true  group_size = 16  {} }}\n"


def read_calibration_inputs(
    path: Path, asked: QuantizeOptions | None = None
) -> tuple[int | None, str, str]:
    by = read_quantize_request(path, asked).calibration
    return by.num_samples, Path(by.data_file).name, by.flag


def test_calibration_inputs_in_the_spec(tmp_path: Path) -> None:
    """In both syntaxes; a derived spec overrides its base, and options override both."""
    (tmp_path / "a").mkdir()
    base = write_spec(tmp_path, HEAD + INPUTS.format('calibration_data = "a/x.jsonl"'))
    twin = YAML.replace("lm_head_bits: none", "calibration_data: a/x.jsonl")
    assert read_calibration_inputs(base) == (None, "x.jsonl", "")
    assert read_calibration_inputs(write_spec(tmp_path, twin, "twin.yaml")) == (None, "x.jsonl", "")
    near = 'specc 1\nmodel n\nextends "m.specc"\nquantize { calibration_samples = 3 }\n'
    nearest = write_spec(tmp_path, near, "n.specc")
    assert read_calibration_inputs(nearest) == (3, "", "")
    assert read_calibration_inputs(nearest, QuantizeOptions(calibration_data="y.npz")) == (
        None,
        "y.npz",
        "--calibration-data",
    )
    assert read_calibration_inputs(base, QuantizeOptions(calibration_samples=0)) == (
        0,
        "",
        "--calibration-samples",
    )
    (line,) = read_quantize_request(base, QuantizeOptions(calibration_samples=0)).remarks
    assert line.startswith("`--calibration-samples` overrides `calibration_data` in the spec")


def test_calibration_samples_in_the_spec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_spec(tmp_path, HEAD + SMALL + INPUTS.format("calibration_samples = 2"))
    out = str(tmp_path / "m.onnx")
    assert main(["compile", str(spec), "--init=0", "-o", out]) == 0
    assert "calibrated on 2 self-generated samples" in capsys.readouterr().err
    (tmp_path / "x.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    beside = INPUTS.format('calibration_data = "x.jsonl"')
    spec = write_spec(tmp_path, HEAD + SMALL + beside)
    assert main(["compile", str(spec), "--init=0", "-o", out]) == 0
    assert "GPTQ, calibrated on `x.jsonl`" in capsys.readouterr().err
    # int8 weights need no calibration: reported, and not an error
    args = ["compile", str(spec), "--init=0", "--quantize=int8", "-o", out]
    spec.write_text(HEAD + SMALL + beside.replace("all = true", ""))
    assert main(args) == 0
    assert "`calibration_data` calibrates int4 weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ('calibration_samples = "-1"', "E0858"),
        ("calibration_samples = -1", "E0858"),
        ("calibration_samples = -1.5", "E0858"),
        ("calibration_samples = [-1]", "E0858"),
        ("calibration_samples = 100001", "E0858"),
        ("calibration_samples = [1, 2]", "E0858"),
        ("calibration_samples = []", "E0858"),
        ("calibration_data = []", "E0858"),
        ('calibration_data = ""', "E0858"),
        ('calibration_data = "/etc/passwd"', "E0803"),
        ('calibration_data = "../x.npz"', "E0803"),
        ('calibration_data = "a\\u{0}b"', "E0802"),
        ('calibration_samples = 2  calibration_data = "x.npz"', "E0950"),
    ],
)
def test_invalid_calibration_inputs(words: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(specc.SpeccError, match=code):
        read_quantize_request(write_spec(tmp_path, HEAD + INPUTS.format(words)))


@pytest.mark.parametrize("more", [[], ["--graphs", "step", "--kv-cache", "int8"]])
def test_missing_calibration_data(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error points at the line of the spec; it once named only the working directory."""
    spec = write_spec(tmp_path, HEAD + SMALL + INPUTS.format('calibration_data = "no.npz"'))
    args = ["compile", str(spec), "--init=0", "-o", str(tmp_path / "out"), *more]
    assert main(args) == 3
    said = capsys.readouterr().err
    assert "error[E0802]: the calibration data file `no.npz` of the spec" in said
    assert f"{spec.name}:5:" in said
    assert "the folder you are in" not in said
    assert not (tmp_path / "out").exists()


def test_calibration_data_is_not_overwritten(tmp_path: Path) -> None:
    inputs = write_spec(tmp_path, '{"input_ids": [1, 2]}\n', "x.onnx")
    spec = write_spec(tmp_path, HEAD + SMALL + INPUTS.format('calibration_data = "x.onnx"'))
    with pytest.raises(specc.SpeccError, match="E08"):
        specc.compile(spec, inputs, init=0, force=True)
    assert inputs.read_text().startswith("{")
