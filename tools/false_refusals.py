"""How often does the error budget refuse a right answer? Fresh draws of right implementations, counted.

    python -m tools.false_refusals --draws 100000

Every draw takes new sizes, options, dtype and inputs, and several right implementations: NumPy's online softmax, tiled
attention with random tiles, the four steps, and PyTorch's own kernels; o, lse and all gradients.
"""

import argparse
import sys
import time

import numpy as np
import torch
from tqdm import tqdm

from flashlib.algorithms import api, online, tiled
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import draw

DTYPES = ("float64", "float32", "float16", "bfloat16")


def one_draw(seed: int) -> list[str]:
    """The lines that were refused, and how many were judged, for the problem with this seed."""
    rng = np.random.default_rng(seed)
    Hkv, group = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    Sq, Sk = (int(n) for n in rng.integers(1, 48, 2))
    D, Dv = (int(n) for n in rng.integers(1, 40, 2))
    dtype = DTYPES[rng.integers(4)]
    spread = float(rng.choice([0.1, 1.0, 5.0, 20.0]))
    x = draw(seed, 1, Hkv * group, Hkv, Sq, Sk, D, Dv, dtype, "torch", spread)
    causal = bool(rng.integers(2))
    exact = Problem(*x, causal=causal)
    refused, judged = [], 0

    def judge(name, **results):
        nonlocal judged
        for line in exact.compare(**results):
            judged += 1
            if not line.ok:
                refused.append(f"seed {seed} {dtype} {name}: {line}")

    if dtype == "float64":
        k, v = (np.repeat(t.numpy(), group, axis=1) for t in (x.k, x.v))
        o_np, lse_np = online.stream(x.q.numpy(), k, v, block=int(rng.integers(1, 50)), causal=causal)
        judge("online", o=o_np, lse=lse_np)
    blocks = {"block_q": int(rng.integers(1, 50)), "block_k": int(rng.integers(1, 50))}
    for name in ("tiled", "naive", "sdpa"):
        q, k, v = (t.clone().requires_grad_() for t in x[:3])
        lse: torch.Tensor | None = None
        if name == "tiled":
            o, lse = tiled.attention(q, k, v, causal=causal, **blocks)
        elif name == "naive":
            o, lse = api.attention(q, k, v, causal=causal, impl="naive", return_lse=True)
        else:
            o = api.attention(q, k, v, causal=causal, impl="sdpa")
        dq, dk, dv = torch.autograd.grad(o, (q, k, v), x.do)
        judge(name, o=o, dq=dq, dk=dk, dv=dv, **({} if lse is None else {"lse": lse}))
    return [str(judged), *refused]


def main() -> int:
    """Count, print every refusal and the rate; exit status 1 if there was any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="first seed; printed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    judged = refused = 0
    for seed in tqdm(range(args.seed, args.seed + args.draws), unit="draw", file=sys.stderr):
        count, *lines = one_draw(seed)
        judged, refused = judged + int(count), refused + len(lines)
        for line in lines:
            tqdm.write(line)
    print(f"first seed {args.seed}: {args.draws} draws, {judged} right results judged, {refused} refused")
    return int(refused > 0)


if __name__ == "__main__":
    raise SystemExit(main())
