"""Settled before any test module is imported: without a GPU, Triton interprets its kernels on the CPU."""

from flashlib.setup import decide_interpreter, find_gpu

decide_interpreter(find_gpu())
