"""List the node signatures that the installed CUDA execution provider supports, over all test
models compiled for CUDA: tests/support/kernel_lists/cuda.json.

`python benchmarks/gpu_kernels.py` requires `tests` on PYTHONPATH. Opening a model requires a GPU,
or stub libraries in place of NVIDIA's libraries, because no kernel is executed.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import date

import onnxruntime
from onnx import ModelProto
from support.cuda_kernels import (
    COMPUTE_DTYPES,
    KERNEL_LIST,
    build_op_models,
    build_spec_models,
    iterate_signatures,
)
from support.small_configs import SMALL_CONFIGS

from specc_onnx.execution_providers import (
    ORT_PROVIDER_NAMES,
    RECORD_PLACEMENT_OPTION,
    SILENT_LOG_LEVEL,
)


def iterate_test_models() -> Iterator[tuple[str, ModelProto]]:
    """Yield the name and the model of every test case."""
    for width in COMPUTE_DTYPES:
        for name, model in build_op_models(width):
            yield f"{name} {width}", model
        for spec in sorted(SMALL_CONFIGS):
            for name, model in build_spec_models(spec, width):
                yield f"{name} {width}", model


def list_cuda_nodes(model: ModelProto) -> set[tuple[str, str]]:
    """Return the operator and name of each node that runs on CUDA without optimizations."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT_LOG_LEVEL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(RECORD_PLACEMENT_OPTION, "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=[ORT_PROVIDER_NAMES["cuda"]]
    )
    return {
        (node.op_type, node.name)
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name == ORT_PROVIDER_NAMES["cuda"]
        for node in part.get_nodes()
    }


def main() -> None:
    """Query the execution provider and write the list."""
    kernels: dict[str, set[str]] = defaultdict(set)
    for label, model in iterate_test_models():
        try:
            cuda_nodes = list_cuda_nodes(model)
        except Exception as error:  # the exceptions of ONNX Runtime have no common base class
            print(f"{label}: {' '.join(str(error).split())[-200:]}", flush=True)
            continue
        for node, text in iterate_signatures(model):
            if (node.op_type, node.name) in cuda_nodes:
                kind, since, types = text.split(" ")
                kernels[f"{kind} {since}"].add(types)
    told = {
        "provider": f"CUDA, onnxruntime-gpu {onnxruntime.__version__}",
        "source": "the nodes of the test models on the provider without optimization, by benchmarks/gpu_kernels.py",
        "read": date.today().isoformat(),
        "kernels": {kind: sorted(types) for kind, types in sorted(kernels.items())},
    }
    KERNEL_LIST.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
