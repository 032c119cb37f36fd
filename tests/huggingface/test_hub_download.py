"""Hub models are downloaded once, from a local server that implements the Hub API."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnx
import pytest

from specc.weights.formats.safetensors import write_safetensors

COMMIT, OLDER = "a" * 40, "b" * 40
CONFIG = {
    "model_type": "llama", "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True,
}  # fmt: skip
SHAPES = {
    "embed_tokens": (11, 8), "norm": (8,), "layers.0.input_layernorm": (8,), "layers.0.post_attention_layernorm": (8,),
    "layers.0.self_attn.q_proj": (8, 8), "layers.0.self_attn.k_proj": (4, 8), "layers.0.self_attn.v_proj": (4, 8),
    "layers.0.self_attn.o_proj": (8, 8), "layers.0.mlp.gate_proj": (12, 8), "layers.0.mlp.up_proj": (12, 8),
    "layers.0.mlp.down_proj": (8, 12),
}  # fmt: skip


def make_model_files(directory: Path, layers: int) -> dict[str, bytes]:
    path = directory / f"{layers}.safetensors"
    names = {
        name.replace("layers.0", f"layers.{n}"): shape
        for n in range(layers)
        for name, shape in SHAPES.items()
    }
    write_safetensors(
        path, {f"model.{n}.weight": np.full(s, 0.1, np.float32) for n, s in names.items()}
    )
    return {
        "config.json": json.dumps({**CONFIG, "num_hidden_layers": layers}).encode(),
        "model.safetensors": path.read_bytes(),
        "pytorch_model.bin": b"never asked for",
    }


@contextmanager
def serve_local_hub(repository: dict[str, dict[str, bytes]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the endpoint of a Hub with the model me/tiny, and the requested paths."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def send_answer(self, data: bytes, code: int = 200, **headers: str) -> None:
            self.send_response(code)
            for key, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(f"{self.command} {path}")
            parts = path.strip("/").split("/")
            named = parts[parts.index("revision") + 1] if "revision" in parts else "main"
            if "resolve" in parts:
                named = parts[parts.index("resolve") + 1]
            commit = {"main": COMMIT, "v1": OLDER}.get(named, named)
            if "tiny" not in parts or commit not in repository:
                self.send_answer(
                    b"{}", 404, X_Error_Code="RepoNotFound", X_Error_Message="no such model"
                )
            elif "resolve" in parts:
                data = repository[commit][parts[-1]]
                etag = f'"{commit[0]}{len(data)}"'
                self.send_answer(data, ETag=etag, X_Repo_Commit=commit)
            elif "tree" in parts:
                listed = [
                    {"type": "file", "path": n, "size": len(d), "oid": n}
                    for n, d in repository[commit].items()
                ]
                self.send_answer(json.dumps(listed).encode(), Content_Type="application/json")
            else:
                siblings = [{"rfilename": name} for name in repository[commit]]
                info = {"id": "me/tiny", "sha": commit, "siblings": siblings}
                self.send_answer(json.dumps(info).encode(), Content_Type="application/json")

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


COMMANDS = """
import json, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from specc.cli.main import main
for line in sys.stdin:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(json.loads(line))
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""
Run = Callable[..., tuple[int, str, str]]


@contextmanager
def run_specc(directory: Path, endpoint: str, **more: str) -> Iterator[Run]:
    """Yield a function that runs one command and returns its status and output. All commands run in
    one process, because `huggingface_hub` reads the environment at import."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(directory / "home"),
        **more,
    }
    environment["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    with subprocess.Popen(
        [sys.executable, "-c", COMMANDS],
        cwd=directory,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout

        def run_command(*words: str) -> tuple[int, str, str]:
            print(json.dumps(words), file=process.stdin, flush=True)
            status, out, err = json.loads(process.stdout.readline())
            return status, out, err

        yield run_command


def test_download_once_and_pin_a_revision(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    repository = {COMMIT: make_model_files(tmp_path, 1), OLDER: make_model_files(tmp_path, 2)}
    with serve_local_hub(repository) as (endpoint, asked), run_specc(tmp_path, endpoint) as run:
        status, out, err = run("compile", "hf:me/tiny", "-o", "m.onnx")
        assert status == 0, err
        assert (tmp_path / "m.onnx").exists()
        assert f"hf:me/tiny@{COMMIT}" in out + err
        assert any(a.endswith("/model.safetensors") for a in asked)
        assert not any(a.endswith(".bin") for a in asked)
        asked.clear()
        pinned = f"hf:me/tiny@{COMMIT}"
        status, _, err = run("compile", pinned, "-o", "m.onnx")
        assert status == 0, err
        assert not any(a.startswith("GET") and "resolve" in a for a in asked)
        status, out, err = run("compile", "hf:me/tiny@v1", "-o", "v1.onnx")
        assert status == 0, err
        assert OLDER in out + err
        parameters = [(n.name, n.dims) for n in onnx.load(tmp_path / "v1.onnx").graph.initializer]
        assert any("layers.1." in name for name, _ in parameters)
        status, _, err = run("check", "hf:me/other")
        assert status == 3
        assert "E0806" in err
    # offline the cache suffices
    with run_specc(tmp_path, endpoint, HF_HUB_OFFLINE="1") as run:
        status, _, err = run("check", "hf:me/tiny")
        assert status == 0, err
        status, _, err = run("check", "hf:me/other")
        assert status == 3
        assert "E0806" in err
