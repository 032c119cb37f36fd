"""Run a compiled model on text, images, audio or arrays and print the outputs, or generate text."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from specc.cli.options import (
    COUNT_OPTION,
    FORCE_OPTION,
    NO_DEFAULT,
    PROVIDER_OPTION,
    add_generation_options,
    add_option_groups,
    collect_generation_settings,
    make_output_option,
)
from specc.cli.run_inputs import (
    ParsedInputs,
    add_image_arguments,
    add_prompt_images,
    parse_input_arguments,
)
from specc.cli.run_outputs_and_predictions import (
    RunOutputFiles,
    array_to_json,
    generated_sequence_to_json,
    parse_output_options,
    print_generated_texts,
    reject_task_options,
    run_task_command,
)
from specc.cli.run_task_inputs import add_example_to_error, has_array_arguments
from specc.cli.terminal import get_output_settings, print_json_result, print_note
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.driver.option_kinds import (
    BOOLEAN_OPTION,
    STRING_LIST_OPTION,
    STRING_OPTION,
    Option,
    make_choice_option_type,
)
from specc.io.json_io import NO_LIMITS, parse_strict_json
from specc.io.safe_read import escape_text, read_required_file
from specc.ir.array import Array
from specc.model_loading import check_model_is_compiled
from specc.preprocessing.chat_template import MAX_TEXT
from specc.preprocessing.images import ImageSize
from specc.preprocessing.predictions import AGGREGATION_STRATEGIES
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import TEXT_CONFIGS
from specc.preprocessing.result_formatting import format_results
from specc.preprocessing.tasks import PROBABILITY_FUNCTIONS, Task
from specc.runtime.attention_plot import capture_attention, capture_generation_attention
from specc.runtime.generation_request import prepare_chat_inputs
from specc.runtime.generation_stream_and_results import GenerationStream, convert_results_to_arrays
from specc.runtime.inference_model import (
    InferenceModel,
    get_model_for_attention_maps,
    get_model_task,
    get_streaming_model,
    list_model_files,
    open_compiled_model,
    runs_full_forward,
)

CHAT_HELP = 'write [{"role": "user", "content": "your message"}, …]'
TASK_OPTIONS: Mapping[str, Option] = {
    "aggregation_strategy": Option(
        make_choice_option_type(AGGREGATION_STRATEGIES),
        "",
        "token classification: method of merging tokens into entities (default: simple)",
        extra_arguments=NO_DEFAULT,
    ),
    "function_to_apply": Option(
        make_choice_option_type(PROBABILITY_FUNCTIONS),
        "",
        "text classification: function applied to the logits (default: from config.json)",
        extra_arguments=NO_DEFAULT,
    ),
    "hypothesis_template": Option(
        STRING_OPTION,
        "TEXT",
        "zero-shot image classification: prompt template, {} is replaced by the label",
    ),
    "prompt_name": Option(
        STRING_OPTION,
        "NAME",
        "embeddings: prepend this prompt of config_sentence_transformers.json",
    ),
    "similarity": Option(BOOLEAN_OPTION, "", "embeddings: print pairwise cosine similarities"),
}
"""Postprocessing options of tasks (docs/tasks.md)."""
INPUT_OPTIONS: Mapping[str, Option] = {
    "chat": Option(
        STRING_OPTION,
        "TEXT|@FILE",
        "apply the chat template to a user message, or to the JSON list of messages in @FILE",
        extra_arguments=NO_DEFAULT,
    ),
    "image": Option(
        STRING_LIST_OPTION,
        "FILE",
        "image for the prompt, the chat message or the task; may be repeated (docs/inputs.md)",
    ),
    "chunk_size": Option(
        COUNT_OPTION,
        "N",
        "streaming models: feed the input in chunks of N positions (docs/streaming-inference.md)",
        extra_arguments={"default": 0},
    ),
    "graph": Option(STRING_OPTION, "NAME", "run one forward pass of this graph of a package"),
    "execution_provider": PROVIDER_OPTION,
}
OUTPUT_OPTIONS: Mapping[str, Option] = {
    **make_output_option("OUT.npz", "also write the outputs as NumPy arrays"),
    **FORCE_OPTION,
    "attention": Option(
        STRING_OPTION,
        "OUT.html|.svg|.png",
        "plot attention weights as an interactive page (.html) or a figure (.svg, .png)",
    ),
    "scope": Option(
        STRING_OPTION,
        "PATTERN",
        "plot the attention layers in this scope (default: the last layer; all layers for .html)",
    ),
    "layers": Option(STRING_OPTION, "0,2-5", "plot these layers (default: all)"),
    "heads": Option(STRING_OPTION, "0,2-5", "plot these heads (default: all)"),
    "log_scale": Option(BOOLEAN_OPTION, "", "use a logarithmic color scale"),
    **TASK_OPTIONS,
}


def add_run_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc run`."""
    parser.add_argument("model", metavar="MODEL.onnx|DIR", help="compiled model or package")
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="text, @FILE (one text per line), - (stdin), [[1, 2]] (token ids), or a file "
        "(.png, .jpg, .wav, .npy, .npz, .json); NAME=INPUT passes it to the input NAME; "
        "several inputs form a batch (docs/inputs.md)",
    )
    add_option_groups(parser, input=INPUT_OPTIONS, output=OUTPUT_OPTIONS)
    add_generation_options(parser)


def execute_run_command(args: Namespace) -> int:
    """Run the model, print the results, and write the output files."""
    check_model_is_compiled(args.model)
    model = open_compiled_model(args.model, graph=args.graph, provider=args.execution_provider)
    input_signature, settings = model.input_signature, collect_generation_settings(args)
    if model.random_init_metadata is not None:
        print_note(str(model.random_init_metadata))
    task = get_model_task(model) if args.chat is None and not args.chunk_size else None
    try:
        return _run_model(model, task, args, settings)
    except SpeccError as failed:
        if args.inputs or args.image:
            raise
        raise add_example_to_error(failed, args.model, input_signature, task) from None


def _run_model(
    model: InferenceModel, task: Task | None, args: Namespace, settings: Mapping[str, object]
) -> int:
    """Run a loaded model in the requested mode: task, streaming, generation, or forward pass."""
    input_signature = model.input_signature
    if task and not has_array_arguments(task, args.inputs, [*input_signature.graph.inputs]):
        args.inputs = add_image_arguments(task, args.image, args.inputs)
        return run_task_command(model, task, args, settings)
    reject_task_options(args)
    arguments, chat = add_prompt_images(input_signature, args.image, args.inputs, args.chat)
    run_inputs = parse_input_arguments(input_signature, arguments)
    files = [*run_inputs.files, *args.image]
    outputs = parse_output_options(args, [*list_model_files(model), *map(Path, files)])
    outputs.check_output_paths()
    if args.chunk_size or (model.streaming_model is not None and model.scoring_model is None):
        _stream_chunks(model, run_inputs.inputs, outputs, args.chunk_size)
    elif chat is not None:
        messages = _read_messages(chat) if chat == args.chat else chat
        inputs = prepare_chat_inputs(input_signature, messages, run_inputs.inputs, args.image)
        _generate(model, model.start_generation(inputs, settings), outputs)
    elif runs_full_forward(model, run_inputs.inputs, settings):
        _run_graph(model, run_inputs, outputs)
        if not (outputs.npz_path or outputs.attention_plot_path):
            _print_generation_note(model)
    else:
        _generate(model, model.start_generation(run_inputs.inputs, settings), outputs)
    return 0


GENERATE_NOTE = (
    "this is the output of one forward pass; to generate text, add `--max-tokens N`, or compile "
    "with `--graphs all -o DIR` and run that package, which has a KV cache"
)


def _print_generation_note(model: InferenceModel) -> None:
    """Print how to generate text if only the forward pass of a generative model was run."""
    signature = model.input_signature
    config = signature.preprocessing.get_input_config(signature.sequence_input)
    if model.generator is not None and isinstance(config, TEXT_CONFIGS):
        print_note(GENERATE_NOTE)


def _read_messages(chat: str) -> object:
    """Parse the value of `--chat`: the text of a user message, or `@FILE` with a JSON list of
    messages. Raise E0802 or E0425 if the file is invalid.
    """
    if not chat.startswith("@"):
        return chat
    description = f"the chat `{escape_text(chat[1:])}`"
    try:
        text = read_required_file(chat[1:], MAX_TEXT, description).decode("utf-8-sig")
        return parse_strict_json(text, NO_LIMITS)
    except ValueError as error:
        raise_error("E0425", f"invalid chat: {escape_text(error)[:200]}", helps=[CHAT_HELP])


def _run_graph(
    inference_model: InferenceModel, run_inputs: ParsedInputs, outputs: RunOutputFiles
) -> None:
    """Run one forward pass of a graph and print the postprocessed outputs."""
    model = inference_model.selected_model
    if outputs.attention_plot_path:
        capture = capture_attention(
            model, run_inputs.inputs, scope=outputs.attention_selection.scope
        )
        outputs.write_attention_plot(capture)
        results = capture.results
    else:
        results = model.run(**run_inputs.inputs)
    _print_outputs(model.manifest.preprocessing, results, outputs, run_inputs.sizes)


def _print_outputs(
    preprocessing: PreprocessingConfig,
    results: Mapping[str, Array],
    outputs: RunOutputFiles,
    sizes: Sequence[ImageSize] = (),
) -> None:
    """Print postprocessed outputs, or arrays as JSON. Write output images and arrays to files."""
    formatted = format_results(preprocessing, results, sizes)
    result = {
        "lines": list(formatted.lines),
        "results": {name: array_to_json(array) for name, array in results.items()},
    }
    lines = () if print_json_result(result) else formatted.lines
    print(*lines, sep="\n", end="\n" if lines else "")
    outputs.write_images(formatted.images)
    outputs.write_arrays(results)


def _stream_chunks(
    model: InferenceModel, inputs: Mapping[str, Array], outputs: RunOutputFiles, chunk_size: int
) -> None:
    """Run a model chunk by chunk. Raise E0977 for `--attention` or if the model does not stream."""
    streaming_model = get_streaming_model(model)
    if outputs.attention_plot_path:
        # get_model_for_attention_maps raises E0931, which takes precedence over E0977
        get_model_for_attention_maps(model)
        helps = ["remove `--chunk-size`"]
        raise_error("E0977", "attention weights of a stream cannot be plotted", helps=helps)
    results = streaming_model.run(inputs, chunk_size)
    _print_outputs(streaming_model.input_signature.preprocessing, results, outputs)


def _print_generated_text(stream: GenerationStream) -> None:
    """Print the text of a sequence while it is generated."""
    for piece in stream.pieces():
        print(escape_text(piece[0], keep="\n\t"), end="", flush=True)
    print()


def _is_printed_while_generated(stream: GenerationStream) -> bool:
    """Return True if text is printed during generation: one sequence, and no JSON output."""
    is_single_sequence = stream.settings.num_return_sequences == 1 and len(stream.prompt) == 1
    has_text = stream.model.decode_fn is not None
    return is_single_sequence and has_text and not get_output_settings().is_machine_readable


def _generate(model: InferenceModel, stream: GenerationStream, outputs: RunOutputFiles) -> None:
    """Generate sequences. Print a single sequence while it is generated, or several sequences after
    generation.
    """
    if outputs.attention_plot_path:
        # report a missing attention graph before generation starts
        get_model_for_attention_maps(model)
    prints_pieces = _is_printed_while_generated(stream)
    if prints_pieces:
        _print_generated_text(stream)
    results = stream.results()
    result = {"texts": [[*map(generated_sequence_to_json, sequences)] for sequences in results]}
    if not print_json_result(result) and not prints_pieces:
        print_generated_texts(results)
    # the attention plot shows the best sequence of the first prompt
    best = results[0][0]
    if reason := stream.explain_truncation(best):
        print_note(f"truncated after {len(best.tokens)} tokens, {reason}")
    attention_results: dict[str, Array] = {}
    if outputs.attention_plot_path:
        capture = capture_generation_attention(
            get_model_for_attention_maps(model), stream, best, outputs.attention_selection.scope
        )
        outputs.write_attention_plot(capture)
        attention_results = capture.results
    outputs.write_arrays({**attention_results, **convert_results_to_arrays(stream, results)})
