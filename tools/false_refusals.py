"""How often does the error budget refuse a right answer? Fresh draws of right implementations, counted.

    python -m tools.false_refusals --draws 100000

Every draw takes new sizes, options (dropout and a gradient of lse among them), dtype and inputs, some with equal keys,
scores or values, and several right implementations: NumPy's online softmax, tiled attention with random tiles, the four
steps, PyTorch's own kernels, and what a GPU kernel rounds; o, lse and all gradients.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from flashlib.algorithms import api, naive, online, tiled
from flashlib.algorithms.masks import visible
from flashlib.algorithms.philox import keep_mask
from flashlib.grading.exactness import Problem
from flashlib.grading.inputs import Inputs, draw

LOG2E = 1.4426950408889634
DTYPES = ("float64", "float32", "float16", "bfloat16")


# half of the draws are plain; the others have a structure that makes roundings repeat instead of cancelling
SPECIAL: list[Callable[[Inputs], Inputs]] = [
    lambda x: x,
    lambda x: x,
    lambda x: x,
    lambda x: x,
    lambda x: x._replace(k=x.k[:, :, :1].expand_as(x.k)),  # equal keys
    lambda x: x._replace(q=0 * x.q),  # equal scores, whatever the keys
    lambda x: x._replace(v=x.v[:, :, :1].expand_as(x.v)),  # equal values
    lambda x: x._replace(do=torch.ones_like(x.do)),  # the loss is the sum of o
]


def as_a_kernel(x: Inputs, scale: float, see: Tensor, z: Tensor, dlse: Tensor | None, exact_delta: bool):
    """What a GPU kernel does in 16 bits: unnormalised P rounded before PV, one division, dS rounded, exp2."""
    t, work = x.q.dtype, torch.float64 if x.q.dtype == torch.float64 else torch.float32
    q, k, v, do = (y.to(work) for y in x)
    group = q.shape[1] // k.shape[1]
    k, v = (y.repeat_interleave(group, 1) for y in (k, v))
    z = z.to(work)

    def rounded(y: Tensor) -> Tensor:
        return y.to(t).to(work)

    s = (q @ k.mT * (scale * LOG2E)).masked_fill(~see, -torch.inf)
    m = s.amax(-1, keepdim=True)
    m = m.masked_fill(m == -torch.inf, 0)
    e = torch.exp2(s - m)
    l = e.sum(-1, keepdim=True)
    l1 = l.masked_fill(l == 0, 1)
    o = rounded(e * (z > 0)) @ v / l1 * z.amax()
    lse = torch.where(l == 0, -torch.inf, m / LOG2E + l1.log())
    p = torch.where(see & (l > 0), torch.exp2(s - lse.nan_to_num(neginf=0) * LOG2E), 0)
    delta = ((o if exact_delta else rounded(o)) * do).sum(-1, keepdim=True)
    if dlse is not None:
        delta = delta - dlse.to(work)[..., None]
    ds = rounded(p * (z * (do @ v.mT) - delta))
    dk, dv = ds.mT @ q * scale, rounded(p * z).mT @ do
    dk, dv = (y.unflatten(1, (-1, group)).sum(2) for y in (dk, dv))
    return o.to(t), lse[..., 0], (ds @ k * scale).to(t), dk.to(t), dv.to(t)


def one_draw(seed: int) -> list[str]:
    """How many results were judged, and the lines of those refused, for the problem with this seed."""
    rng = np.random.default_rng(seed)
    Hkv, group = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    Sq, Sk = (int(n) for n in rng.integers(1, 48, 2) ** rng.integers(0, 2))
    D, Dv = (int(n) for n in rng.integers(1, 70, 2))
    dtype = DTYPES[rng.integers(4)]
    spread, offset = float(rng.choice([0.1, 1.0, 5.0, 20.0])), float(rng.choice([0.0, 0.0, 120.0]))
    plain = draw(seed, 1, Hkv * group, Hkv, Sq, Sk, D, Dv, dtype, "torch", spread, offset)
    x = SPECIAL[rng.integers(len(SPECIAL))](plain)
    causal, dropout_p = bool(rng.integers(2)), float(rng.choice([0.0, 0.0, 0.1, 0.5]))
    options = {"causal": causal, "dropout_p": dropout_p, "seed": seed}
    dlse = torch.randn(x.q.shape[:3], generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    dlse = dlse.double() if dtype == "float64" else dlse
    exact = Problem(*x, dlse, **options)
    refused, judged = [], 0

    def judge(name, against=exact, **results):
        nonlocal judged
        for line in against.compare(**results):
            judged += 1
            if not line.ok:
                refused.append(f"seed {seed} {dtype} {name}: {line}")

    if dtype == "float64" and not dropout_p:
        k_np, v_np = (np.repeat(t.numpy(), group, axis=1) for t in (x.k, x.v))
        o_np, lse_np = online.stream(x.q.numpy(), k_np, v_np, block=int(rng.integers(1, 50)), causal=causal)
        judge("online", o=o_np, lse=lse_np)
    see = torch.from_numpy(visible(Sq, Sk, causal))
    keep = keep_mask(seed, dropout_p, 1, Hkv * group, Sq, Sk)
    z = torch.from_numpy(keep / (1 - dropout_p)) if dropout_p else torch.ones(())
    for exact_delta in (False, True):
        o, lse, dq, dk, dv = as_a_kernel(x, D**-0.5, see, z, dlse, exact_delta)
        judge(f"as a kernel {exact_delta}", o=o, lse=lse, dq=dq, dk=dk, dv=dv)
    blocks: dict = {"block_q": int(rng.integers(1, 50)), "block_k": int(rng.integers(1, 50))}
    for name in ("tiled", "naive"):
        q, k, v = (t.clone().requires_grad_() for t in x[:3])
        run: Callable = partial(tiled.attention, **blocks) if name == "tiled" else naive.attention
        o, lse = run(q, k, v, **options)
        dq, dk, dv = torch.autograd.grad((o, lse), (q, k, v), (x.do, dlse))
        judge(name, o=o, lse=lse, dq=dq, dk=dk, dv=dv)
    if not dropout_p:
        q, k, v = (t.clone().requires_grad_() for t in x[:3])
        o = api.attention(q, k, v, causal=causal, impl="sdpa")
        dq, dk, dv = torch.autograd.grad(o, (q, k, v), x.do)
        judge("sdpa", against=Problem(*x, causal=causal), o=o, dq=dq, dk=dk, dv=dv)
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
