"""Run by a Python that has onnxruntime-genai: `with_genai.py FOLDER PROMPTS MAX`,
prints the tokens written as JSON.
"""

import json
import sys

import numpy as np
import onnxruntime_genai as og


def main(directory: str, prompts: str, most: str, beams: str = "1") -> None:
    """Greedy, or by beams; prompts of equal length."""
    ids = np.array(json.loads(prompts), np.int32)
    params = og.GeneratorParams(og.Model(directory))
    options = {"num_beams": int(beams), "num_return_sequences": 1} if beams != "1" else {}
    params.set_search_options(
        max_length=ids.shape[1] + int(most),
        batch_size=len(ids),
        do_sample=False,
        early_stopping=True,
        **options,
    )
    generator = og.Generator(og.Model(directory), params)
    generator.append_tokens(ids)
    while not generator.is_done():
        generator.generate_next_token()
    print(
        json.dumps(
            [np.array(generator.get_sequence(n))[ids.shape[1] :].tolist() for n in range(len(ids))]
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
