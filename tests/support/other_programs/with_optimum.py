"""Run by a Python that has Optimum:
`with_optimum.py FOLDER KIND PROMPTS MASK MAX BEAMS`, prints tokens as JSON.
"""

import json
import sys

import torch
from optimum.onnxruntime import ORTModelForCausalLM, ORTModelForSeq2SeqLM


def main(directory: str, kind: str, prompts: str, mask: str, most: str, beams: str) -> None:
    """What `generate` writes; of a decoder alone without the prompt, of a translator
    without the start.
    """
    ids, seen = torch.tensor(json.loads(prompts)), torch.tensor(json.loads(mask))
    model = (ORTModelForCausalLM if kind == "decoder" else ORTModelForSeq2SeqLM).from_pretrained(
        directory
    )
    made = model.generate(
        input_ids=ids,
        attention_mask=seen,
        max_new_tokens=int(most),
        num_beams=int(beams),
        do_sample=False,
    )
    print(json.dumps(made[:, ids.shape[1] if kind == "decoder" else 1 :].tolist()))


if __name__ == "__main__":
    main(*sys.argv[1:])
