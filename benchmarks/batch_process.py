"""Load a model, generate for a batch of prompts, and measure: `batch_process.py PROGRAM MODEL
PROMPT COUNT THREADS BATCH` prints JSON.

`prefill` is the time until every sequence has its first token, and `step` is the time per further
token of all sequences. `step` is computed as the time for COUNT + 1 tokens minus the time for one
token, divided by COUNT, because some programs do not return the tokens of a batch one by one. Both
times are minima of two runs.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from load_process import make_prompt, read_peak_memory

Prompts = list[list[int]]
GenerateBatch = Callable[[Prompts, int], Prompts]
"""Generates a number of tokens for each prompt by greedy decoding, ignoring stop tokens."""


def load_specc(model: str, threads: int, length: int, batch: int) -> GenerateBatch:
    """Load a specc package and return its generation function."""
    import specc

    opened = specc.load(model, threads=threads)

    def generate(prompts: Prompts, count: int) -> Prompts:
        steps = opened.generate(input_ids=prompts, max_tokens=count, stop=[])
        return _transpose([[int(t) for t in made.tokens] for made in steps])

    return generate


def load_genai(model: str, threads: int, length: int, batch: int) -> GenerateBatch:
    """Load a directory with a `genai_config.json` in onnxruntime-genai."""
    import numpy as np
    import onnxruntime_genai as og

    config = og.Config(model)
    options = {"session_options": {"intra_op_num_threads": threads}}
    config.overlay(json.dumps({"model": {"decoder": options}}))
    opened = og.Model(config)

    def generate(prompts: Prompts, count: int) -> Prompts:
        params = og.GeneratorParams(opened)
        end = len(prompts[0]) + count
        params.set_search_options(
            max_length=end, min_length=end, do_sample=False, batch_size=len(prompts)
        )
        generator = og.Generator(opened, params)
        generator.append_tokens(np.array(prompts, np.int32))
        for _ in range(count):
            generator.generate_next_token()
        return [[int(t) for t in generator.get_sequence(n)[-count:]] for n in range(len(prompts))]

    return generate


def load_ctranslate2(model: str, threads: int, length: int, batch: int) -> GenerateBatch:
    """Load a converted model in CTranslate2. Its tokens are decimal numbers."""
    import ctranslate2

    opened = ctranslate2.Generator(model, device="cpu", intra_threads=threads)

    def generate(prompts: Prompts, count: int) -> Prompts:
        names = [[str(n) for n in prompt] for prompt in prompts]
        made = opened.generate_batch(
            names,
            max_length=count,
            min_length=count,
            sampling_topk=1,
            end_token=[],
            include_prompt_in_result=False,
        )
        return [one.sequences_ids[0] for one in made]

    return generate


def load_llama_cpp(model: str, threads: int, length: int, batch: int) -> GenerateBatch:
    """Load a GGUF file in llama.cpp. Each call of `llama_decode` processes all sequences."""
    import llama_cpp as lib
    import numpy as np

    lib.llama_backend_init()
    opened = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    # llama.cpp rounds the context length of each sequence up to a multiple of 256
    params.n_ctx, params.n_seq_max = batch * (-(-length // 256) * 256), batch
    params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = threads
    context = lib.llama_init_from_model(opened, params)
    vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(opened))

    def decode(entries: list[tuple[int, int, int, bool]]) -> list[int]:
        """Process (token, position, sequence, needs logits). Return the chosen next tokens."""
        chosen = []
        for start in range(0, len(entries), params.n_batch):
            part = entries[start : start + params.n_batch]
            tokens = lib.llama_batch_init(len(part), 0, 1)
            tokens.n_tokens = len(part)
            for n, (token, position, sequence, wanted) in enumerate(part):
                tokens.token[n], tokens.pos[n] = token, position
                tokens.n_seq_id[n], tokens.seq_id[n][0] = 1, sequence
                tokens.logits[n] = wanted
            assert lib.llama_decode(context, tokens) == 0
            for n, (*_, wanted) in enumerate(part):
                if wanted:
                    logits = lib.llama_get_logits_ith(context, n)
                    chosen.append(int(np.argmax(np.ctypeslib.as_array(logits, (vocab,)))))
            lib.llama_batch_free(tokens)
        return chosen

    def generate(prompts: Prompts, count: int) -> Prompts:
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        entries = [
            (token, n, sequence, n == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for n, token in enumerate(prompt)
        ]
        steps = [decode(entries)]
        for n in range(len(prompts[0]), len(prompts[0]) + count - 1):
            steps.append(decode([(t, n, s, True) for s, t in enumerate(steps[-1])]))
        return _transpose(steps)

    return generate


def load_openvino(model: str, threads: int, length: int, batch: int) -> GenerateBatch:
    """Load a GGUF file in OpenVINO GenAI. `model` is `FILE` or `FILE:PRECISION`, where PRECISION is
    a hint for the dtype of activations.
    """
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    path, _, precision = model.partition(":")
    hints: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision} if precision else {}
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": threads, **hints}
    opened = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)

    def generate(prompts: Prompts, count: int) -> Prompts:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        tensors = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        made = opened.generate(tensors, [config] * len(prompts))
        return [list(one.m_generation_ids[0]) for one in made]

    return generate


def _transpose(steps: Prompts) -> Prompts:
    return [list(tokens) for tokens in zip(*steps, strict=True)]


PROGRAMS = {
    "specc": load_specc,
    "genai": load_genai,
    "ctranslate2": load_ctranslate2,
    "llama.cpp": load_llama_cpp,
    "openvino": load_openvino,
}


def measure_process(
    program: str, model: str, prompt: int, count: int, threads: int, batch: int
) -> dict[str, object]:
    """Load a model, generate once as warmup, and return the measured times."""
    generate = PROGRAMS[program](model, threads, prompt + count + 1, batch)
    prefill, whole = [], []
    for run in range(3):
        # prompts differ, because OpenVINO GenAI reuses the KV cache of previous prompts
        prompts = [make_prompt(prompt, 1000 * run + n) for n in range(batch)]
        others = [make_prompt(prompt, 1000 * run + 500 + n) for n in range(batch)]
        start = time.perf_counter()
        generate(prompts, 1)
        middle = time.perf_counter()
        tokens = generate(others, count + 1)
        if run:
            prefill.append(middle - start)
            whole.append(time.perf_counter() - middle)
    return {
        "prefill": min(prefill),
        "step": (min(whole) - min(prefill)) / count,
        "peak": read_peak_memory(),
        "prompt": prompt,
        "tokens": tokens,
    }


if __name__ == "__main__":
    program, model, *numbers = sys.argv[1:]
    print(json.dumps(measure_process(program, model, *map(int, numbers))))
