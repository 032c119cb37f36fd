"""Python code run in a process of its own whose time and memory are bounded, as a bomb must be."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def guarded(code: str, *, seconds: int = 20, megabytes: int = 2000, given: Any = None) -> Any:
    """What `code` gives: it finds `given` and sets `result`, both JSON. Ended after so
    much processor time.
    """

    def bounds() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    program = (
        "import json, sys\ngiven = "
        f"json.load(sys.stdin)\n{code}\nsys.stdout.write('\\n' + json.dumps(result))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        cwd=ROOT,
        preexec_fn=bounds,
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])
