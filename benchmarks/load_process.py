"""Load a model, generate, and measure the whole process: `load_process.py PROGRAM MODEL PROMPT
COUNT THREADS` prints JSON.

`first` is the wall time from the start of the process to the first token, including imports, and
`first_processor` is the corresponding CPU time. `prefill` and `step` are the wall times of a second
run, after warmup; `prefill_processor` and `step_processor` are the corresponding CPU times. A step
time is the minimum over all steps. `peak` is the peak resident memory in MB.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

Generate = Callable[[list[int], int], Iterator[int]]


def load_specc(model: str, threads: int, length: int) -> Generate:
    """Return a generation function that runs a specc package through the Python API."""
    import specc

    opened = specc.load(model, threads=threads)

    def generate(prompt: list[int], count: int) -> Iterator[int]:
        for made in opened.generate(input_ids=[prompt], max_tokens=count, stop=[]):
            yield int(made.tokens[0])

    return generate


def load_genai(model: str, threads: int, length: int) -> Generate:
    """Load a directory with a `genai_config.json` in onnxruntime-genai."""
    import onnxruntime_genai as og

    config = og.Config(model)
    options = {"session_options": {"intra_op_num_threads": threads}}
    config.overlay(json.dumps({"model": {"decoder": options}}))
    opened = og.Model(config)

    def generate(prompt: list[int], count: int) -> Iterator[int]:
        import numpy as np

        params = og.GeneratorParams(opened)
        length = len(prompt) + count
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = og.Generator(opened, params)
        generator.append_tokens(np.array([prompt], np.int32))
        for _ in range(count):
            generator.generate_next_token()
            yield int(generator.get_sequence(0)[-1])

    return generate


def load_ctranslate2(model: str, threads: int, length: int) -> Generate:
    """Load a converted model in CTranslate2. Its tokens are decimal numbers."""
    import ctranslate2

    opened = ctranslate2.Generator(model, device="cpu", intra_threads=threads)

    def generate(prompt: list[int], count: int) -> Iterator[int]:
        names = [str(n) for n in prompt]
        made = opened.generate_tokens(names, max_length=count, sampling_topk=1, end_token=[])
        for one in made:
            yield one.token_id

    return generate


def load_llama_cpp(model: str, threads: int, length: int) -> Generate:
    """Load a GGUF file in llama.cpp, with the default KV cache in float16."""
    import llama_cpp

    opened = llama_cpp.Llama(
        model, n_ctx=length, n_threads=threads, n_threads_batch=threads, verbose=False
    )

    def generate(prompt: list[int], count: int) -> Iterator[int]:
        opened.reset()
        tokens = prompt
        for _ in range(count):
            opened.eval(tokens)
            tokens = [opened.sample(temp=0.0, repeat_penalty=1.0)]
            yield tokens[0]

    return generate


def load_openvino(model: str, threads: int, length: int) -> Generate:
    """Load a GGUF file in OpenVINO GenAI. `model` is `FILE` or `FILE:PRECISION`, where PRECISION is
    a hint for the dtype of activations.
    """
    import openvino as ov
    import openvino_genai as genai

    path, _, precision = model.partition(":")
    hints = {"INFERENCE_PRECISION_HINT": precision} if precision else {}
    opened = genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads, **hints)

    def generate(prompt: list[int], count: int) -> Iterator[int]:
        import numpy as np

        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        found: queue.SimpleQueue[int | None] = queue.SimpleQueue()

        class Streamer(genai.StreamerBase):
            def write(self, tokens: int | list[int]) -> genai.StreamingStatus:
                for token in [tokens] if isinstance(tokens, int) else tokens:
                    found.put(token)
                return genai.StreamingStatus.RUNNING

            def end(self) -> None:
                found.put(None)

        inputs = ov.Tensor(np.array([prompt], np.int64))
        running = threading.Thread(target=opened.generate, args=(inputs, config, Streamer()))
        running.start()
        while (token := found.get()) is not None:
            yield token
        running.join()

    return generate


PROGRAMS = {
    "specc": load_specc,
    "genai": load_genai,
    "ctranslate2": load_ctranslate2,
    "llama.cpp": load_llama_cpp,
    "openvino": load_openvino,
}


def measure_process(
    program: str, model: str, prompt: int, count: int, threads: int
) -> dict[str, object]:
    """Load a model and generate twice in this process. Return the measured times."""
    began = get_process_start_time()
    ids = make_prompt(prompt)
    generate = PROGRAMS[program](model, threads, prompt + count)
    next(iter(generate(ids, 1)))
    first, processor = time.time() - began, time.process_time()
    start, processor_start = time.perf_counter(), time.process_time()
    times, processor_times, tokens = [], [], []
    # a different prompt, because OpenVINO GenAI reuses the KV cache of the previous prompt
    for token in generate(ids[::-1], count):
        times.append(time.perf_counter())
        processor_times.append(time.process_time())
        tokens.append(token)
    return {
        "first": first,
        "first_processor": processor,
        "prefill": times[0] - start,
        "prefill_processor": processor_times[0] - processor_start,
        "step": min(b - a for a, b in pairwise(times)),
        "step_processor": min(b - a for a, b in pairwise(processor_times)),
        "peak": read_peak_memory(),
        "tokens": tokens,
    }


def make_prompt(length: int, seed: int = 12345) -> list[int]:
    """Return a prompt of pseudorandom token ids."""
    ids = []
    for _ in range(length):
        seed = (1103515245 * seed + 12345) % 2**31
        ids.append((seed >> 8) % 50000)
    return ids


def get_process_start_time() -> float:
    """Return the start time of this process in seconds since the epoch."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    # `btime` in /proc/stat has a resolution of one second
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def read_peak_memory() -> float:
    """Return the peak resident memory of this process in MB. `ru_maxrss` would include the memory
    of the parent process.
    """
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 / 1e6 for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    program, model, *numbers = sys.argv[1:]
    print(json.dumps(measure_process(program, model, *map(int, numbers))))
