"""The Python API: functions that correspond to the commands of the command line.

    specc.check("my.specc")
    specc.compile("vit", "vit.onnx", weights="checkpoint/")
    specc.load("vit.onnx").run(pixel_values=array)

Invalid arguments and inputs raise `specc.SpeccError`, whose `diagnostics` contain code, message,
location and help.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from specc.diagnostics.diagnostic import Diagnostic, SpeccError, raise_error
from specc.driver import spec_check_and_elaboration as driver
from specc.driver.compile_model_and_graph_selection import check_checkpoint_weights, compile_model
from specc.driver.compile_options import ARGUMENT_TYPES, build_compile_options, parse_graph_names
from specc.driver.option_kinds import check_argument_values
from specc.driver.output_files_and_compile_report import CompileReport
from specc.driver.spec_loader import open_spec_argument, translate_errors_to_spec_syntax
from specc.io.safe_read import escape_text
from specc.model import GenerationResult, Model
from specc.model_loading import load

__all__ = ["Diagnostic", "GenerationResult", "Model", "SpeccError", "check", "compile", "load"]


@translate_errors_to_spec_syntax()
def check(
    spec: str | Path, *, config: str | Path = "", set: Mapping[str, object] | None = None
) -> driver.SpecCheckResult:
    r"""Check a spec with symbolic dimensions, and then with its config values. `spec` is a path,
    the name of a built-in spec, or source text. For a checkpoint directory, also check the names
    and shapes of its weights.

    >>> specc.check("xor")
    <specc check: xor, predict: x f32[batch, 2] -> y f32[batch, 1], ...>
    >>> specc.check("specc: 1\nmodel: mine\nextends: vit\nconfig: {lyers: 2}\n")
    Traceback (most recent call last):
    specc.diagnostics.diagnostic.SpeccError: error[E0201]: the config of `vit` has no `lyers`
    ...
    """
    check_argument_values(ARGUMENT_TYPES, {"spec": spec, "config": config, "set": set})
    loaded = open_spec_argument(spec, config=config, config_values=set)
    check_result = driver.check_spec(loaded)
    return check_checkpoint_weights(loaded, check_result) if loaded.checkpoint else check_result


@translate_errors_to_spec_syntax()
def compile(
    spec: str | Path,
    output: str | Path,
    *,
    weights: str | Path = "",
    init: int | None = None,
    init_missing: int | None = None,
    adapter: str | Path = "",
    config: str | Path = "",
    set: Mapping[str, object] | None = None,
    target: str = "ort-cpu",
    opset: int = 0,
    taps: Sequence[str] = (),
    context_length: int = 0,
    graph: str = "",
    weights_as: str = "",
    inline_defaults: bool = False,
    graphs: str | Sequence[str] = (),
    io_names: str = "specc",
    generation_config: Mapping[str, object] | None = None,
    quantize: str = "",
    quantize_exclude: Sequence[str] = (),
    group_size: int | None = None,
    lm_head_bits: int | str = "",
    quantize_all: bool = False,
    calibration_samples: int | None = None,
    calibration_data: str | Path = "",
    kv_cache: str = "",
    fold_norms: bool = False,
    for_external_quantization: bool = False,
    dtype: str = "",
    force: bool = False,
) -> CompileReport:
    """Compile a spec to the ONNX model `output`, with the options of the `specc compile` command.

    If `graphs` is not empty, compile a package of several graphs. `generation_config` applies to
    the `generate` graph of a package. If `force` is True, overwrite files that specc did not write.

    >>> specc.compile("xor", "xor.onnx")
    <specc compiled xor: xor.onnx, 1 file, ...>
    """
    arguments = dict(locals())  # `locals()` contains only the arguments so far
    check_argument_values(ARGUMENT_TYPES, arguments)
    _check_generation_config(generation_config, parse_graph_names(graphs))
    options = build_compile_options({**arguments, "generation_config": generation_config or {}})
    length = int(context_length)
    model = open_spec_argument(
        spec, config=config, config_values=set, weights=options.weights, context_length=length
    )
    return compile_model(model, options)


def _check_generation_config(settings: object, graph_names: Sequence[str]) -> None:
    """Raise E0731 for an invalid setting, and E0753 for settings without a standalone generator."""
    if settings is not None and not isinstance(settings, Mapping):
        raise_error(
            "E0731", f"pass generation settings by name, got {escape_text(repr(settings))[:60]}"
        )
    if settings and "generate" not in graph_names:
        raise_error(
            "E0753",
            "`generation_config` has no effect without a standalone generator",
            helps=['add "generate" to `graphs`', "or pass the settings to `generate`"],
        )
