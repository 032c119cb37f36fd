"""Load a model, generate, and measure the whole process: `load_process.py PROGRAM MODEL PROMPT
COUNT` prints JSON.

`first` is the wall time from the start of the process to the first token, imports included,
`first_processor` its processor time; `prefill` and `step` are those of a second, warm run;
`peak` is the resident memory at most, in MB.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

THREADS = 2
Generate = Callable[[list[int], int], Iterator[int]]


def load_specc(model: str) -> Generate:
    """Load a specc package through the Python API."""
    import specc

    opened = specc.load(model, threads=THREADS)

    def generate(prompt: list[int], count: int) -> Iterator[int]:
        for made in opened.generate(input_ids=[prompt], max_tokens=count, stop=[]):
            yield int(made.tokens[0])

    return generate


def load_genai(model: str) -> Generate:
    """Load a directory with a `genai_config.json` in onnxruntime-genai."""
    import onnxruntime_genai as og

    config = og.Config(model)
    config.overlay(
        json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": THREADS}}}})
    )
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


def load_ctranslate2(model: str) -> Generate:
    """Load a converted model in CTranslate2; its tokens are numbers in decimal."""
    import ctranslate2

    opened = ctranslate2.Generator(model, device="cpu", intra_threads=THREADS)

    def generate(prompt: list[int], count: int) -> Iterator[int]:
        names = [str(n) for n in prompt]
        made = opened.generate_tokens(names, max_length=count, sampling_topk=1, end_token=[])
        for one in made:
            yield one.token_id

    return generate


PROGRAMS = {"specc": load_specc, "genai": load_genai, "ctranslate2": load_ctranslate2}


def measure_process(program: str, model: str, prompt: int, count: int) -> dict[str, object]:
    """Load and generate twice, in this process."""
    began = started()
    rng = 12345
    ids = []
    for _ in range(prompt):
        rng = (1103515245 * rng + 12345) % 2**31
        ids.append(rng % 50000)
    generate = PROGRAMS[program](model)
    next(iter(generate(ids, 1)))
    first, processor = time.time() - began, time.process_time()
    start = time.perf_counter()
    times, tokens = [], []
    for token in generate(ids, count):
        times.append(time.perf_counter())
        tokens.append(token)
    return {
        "first": first,
        "first_processor": processor,
        "prefill": times[0] - start,
        "step": min(b - a for a, b in pairwise(times)),
        "peak": read_peak_memory(),
        "tokens": tokens,
    }


def started() -> float:
    """Return the start time of this process in seconds since the epoch."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    with open("/proc/stat", encoding="ascii") as file:
        boot = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def read_peak_memory() -> float:
    """The resident memory of this process at most, in MB; `ru_maxrss` begins with its parent's."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 / 1e6 for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    program, model, prompt, count = sys.argv[1:]
    print(json.dumps(measure_process(program, model, int(prompt), int(count))))
