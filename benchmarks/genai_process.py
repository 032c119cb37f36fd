"""Generate with onnxruntime-genai and measure the times. This script runs in a Python environment
with onnxruntime-genai.

`genai_process.py DIRECTORY THREADS` reads requests `[prompts, count]` as lines of JSON, and answers
each request with `[prefill, gaps, tokens]`.
"""

import json
import shutil
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path


def answer_requests(directory: str, threads: str) -> None:
    """Answer requests from stdin until stdin closes."""
    import numpy as np
    import onnxruntime_genai as og

    with tempfile.TemporaryDirectory() as place:
        model = og.Model(_copy_with_threads(Path(directory), Path(place), int(threads)))
        for line in sys.stdin:
            prompts, count = json.loads(line)
            ids = np.array(prompts, np.int32)
            params = og.GeneratorParams(model)
            length = ids.shape[1]
            params.set_search_options(
                max_length=length + count,
                min_length=length + count,
                batch_size=len(ids),
                do_sample=False,
            )
            began = time.perf_counter()
            generator = og.Generator(model, params)
            generator.append_tokens(ids)
            times = []
            for _ in range(count):
                generator.generate_next_token()
                times.append(time.perf_counter())
            made = [[int(t) for t in generator.get_sequence(n)][length:] for n in range(len(ids))]
            gaps = [b - a for a, b in pairwise(times)]
            print(json.dumps([times[0] - began, gaps, made]), flush=True)


def _copy_with_threads(directory: Path, place: Path, threads: int) -> str:
    """Create a copy of the model (hard links) with a config that sets the number of threads."""
    for path in directory.iterdir():
        if path.suffix == ".json":
            shutil.copy(path, place / path.name)
        else:
            (place / path.name).hardlink_to(path) if _same_disk(path, place) else shutil.copy(
                path, place / path.name
            )
    config = json.loads((directory / "genai_config.json").read_text())
    config["model"]["decoder"].setdefault("session_options", {})["intra_op_num_threads"] = threads
    (place / "genai_config.json").write_text(json.dumps(config))
    return str(place)


def _same_disk(path: Path, place: Path) -> bool:
    return path.stat().st_dev == place.stat().st_dev


if __name__ == "__main__":
    answer_requests(*sys.argv[1:])
