"""The process that compiles: reads a job, answers with the assembler's output, again and again. `compiled` starts it.

It is a process of its own because Triton decides at import whether it interprets, and a compiler that crashes should
take nobody with it. Jobs and answers are pickles on stdin and stdout.
"""

from __future__ import annotations

import hashlib
import linecache
import os
import pickle
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any


def load(name: str, text: str) -> Any:
    """The kernel `name` of a module made from `text`."""
    file = f"<kernel {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # where Triton looks for the source
    module = types.ModuleType("kernel")
    exec(compile(text, file, "exec"), module.__dict__)
    return module.__dict__[name]


def tool(name: str) -> str:
    """Path of ptxas' companion `name` in the Triton wheel (or the one named by TRITON_CUOBJDUMP_PATH)."""
    import triton

    try:
        return getattr(triton.knobs.nvidia, name).path
    except (AttributeError, RuntimeError):
        for folder in (Path(p) for p in triton.__path__):
            for path in (folder / "backends" / "nvidia" / "bin" / name, folder / "third_party" / "cuda" / "bin" / name):
                if path.exists():
                    return str(path)
        raise FileNotFoundError(f"{name} is not in this Triton {triton.__version__}") from None


def build(job: dict[str, Any]) -> dict[str, Any]:
    """Compile one job: shared bytes, warps, tensor memory columns, PTX, SASS and the resource line."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(load(job["name"], job["text"]), job["signature"], job["constexprs"], job["attrs"])
    target = GPUTarget("cuda", job["sm"], 32)
    kernel = triton.compile(source, target=target, options={"num_warps": job["warps"], "num_stages": job["stages"]})
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])

        def dump(flag: str) -> str:
            return subprocess.run([tool("cuobjdump"), flag, cubin], check=True, capture_output=True, text=True).stdout

        usage, sass = dump("-res-usage"), dump("-sass")
    return {
        "shared": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
        "tensor_memory": getattr(kernel.metadata, "tmem_size", None) or 0,
        "usage": usage,
        "sass": sass,
        "ptx": kernel.asm["ptx"],
        "triton": triton.__version__,
    }


def main() -> None:
    """Answer jobs until stdin ends. Triton prints to stdout when ptxas fails: that goes to stderr here."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = build(job)
        except Exception as error:  # whatever a kernel or a compiler can raise; the worker lives on
            answer = {"error": f"{type(error).__name__}: {error}"}
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
