"""Errors of the command line (E0983), with the option of specc for one of another tool."""

from collections.abc import Collection, Mapping

from specc.diagnostics.diagnostic import Diagnostic, Failed
from specc.diagnostics.suggest import did_you_mean, format_suggestion
from specc.io.safe_read import escape_text

OTHER_TOOLS: Mapping[str, str] = {
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
}
"""Options of transformers, vLLM, llama.cpp and optimum, and the corresponding option."""


class UsageError(Failed):
    """E0983: an invalid command line."""

    def __init__(self, command: str, message: str, example: str = "") -> None:
        helps = [f"example: `specc {example}`"] if example else []
        helps.append(f"`{command} --help` lists {'its options' if example else 'the commands'}")
        super().__init__(Diagnostic("E0983", message, helps=tuple(helps)))


def describe_unknown_option(
    word: str, options: Collection[str], others: Mapping[str, Collection[str]]
) -> str:
    """Return the message for an unknown option: a similar one, the one that another tool
    calls so, or the commands that have it (`others`, each with its options).
    """
    word = word.split("=")[0]
    name = word.replace("_", "-")
    meant = OTHER_TOOLS.get(name, name)
    ours = meant.split(" ")[0]
    near = meant if ours in options else did_you_mean(name, options)
    if near:
        return f"there is no option `{escape_text(word)}`; {format_suggestion(near)}"
    return f"there is no option `{escape_text(word)}`{_format_commands(ours, others)}"


def _format_commands(option: str, others: Mapping[str, Collection[str]]) -> str:
    """Return which commands have an option; empty if none has."""
    having = [f"`specc {command}`" for command, theirs in others.items() if option in theirs]
    has = "have" if len(having) > 1 else "has"
    return f" here; {', '.join(having)} {has} `{option}`" if having else ""
