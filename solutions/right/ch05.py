"""Right solutions of chapter 05, written differently. The check must accept every one."""

import torch


# -- 05.1 ----------------------------------------------------------------------------------------------------------
def softmax_course(p, dp):
    delta = (p * dp).sum(-1, keepdim=True)
    return p * (dp - delta)


def softmax_jacobian(p, dp):
    """The whole table of derivatives of each row."""
    table = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
    return (table @ dp[..., None])[..., 0]


def softmax_lists(p, dp):
    """Python lists, row by row."""
    rows = []
    for a, b in zip(p.reshape(-1, p.shape[-1]).tolist(), dp.reshape(-1, p.shape[-1]).tolist(), strict=True):
        mean = sum(x * y for x, y in zip(a, b, strict=True))
        rows.append([x * (y - mean) for x, y in zip(a, b, strict=True)])
    return torch.tensor(rows, dtype=p.dtype).reshape(p.shape)


def softmax_einsum(p, dp):
    return p * dp - torch.einsum("...k,...j,...j->...k", p, p, dp)


def softmax_in_place(p, dp):
    out = dp.clone()
    out -= torch.linalg.vecdot(p, dp)[..., None]
    out *= p
    return out


def softmax_float64(p, dp):
    p64, dp64 = p.double(), dp.double()
    return (p64 * (dp64 - (p64 * dp64).sum(-1, keepdim=True))).to(p.dtype)


# -- 05.2 ----------------------------------------------------------------------------------------------------------
def delta_course(o, do, dlse=None):
    wide = torch.float64 if o.dtype == torch.float64 else torch.float32
    delta = (do.to(wide) * o.to(wide)).sum(-1)
    return delta if dlse is None else delta - dlse


def delta_einsum(o, do, dlse=None):
    wide = torch.promote_types(o.dtype, torch.float32)
    delta = torch.einsum("bhic,bhic->bhi", o.to(wide), do.to(wide))
    if dlse is not None:
        delta -= dlse
    return delta


def delta_loop(o, do, dlse=None):
    wide = torch.promote_types(o.dtype, torch.float32)
    delta = torch.zeros(o.shape[:-1], dtype=wide) if dlse is None else -dlse.to(wide)
    for c in reversed(range(o.shape[-1])):
        delta = delta + o[..., c].to(wide) * do[..., c].to(wide)
    return delta


def delta_product(o, do, dlse=None):
    wide = torch.promote_types(o.dtype, torch.float32)
    delta = (o.to(wide)[..., None, :] @ do.to(wide)[..., None])[..., 0, 0]
    return delta - (0 if dlse is None else dlse)


def delta_float64(o, do, dlse=None):
    delta = (o.double() * do.double()).sum(dim=3)
    delta = delta if dlse is None else delta - dlse.double()
    return delta.to(torch.promote_types(o.dtype, torch.float32))


# -- 05.3 ----------------------------------------------------------------------------------------------------------
def dv_dp_course(p, do, v):
    return p.mT @ do, do @ v.mT


def dv_dp_einsum(p, do, v):
    return torch.einsum("bhij,bhic->bhjc", p, do), torch.einsum("bhic,bhjc->bhij", do, v)


def dv_dp_heads(p, do, v):
    """Head by head, row by row."""
    dv, dp = torch.zeros_like(v), torch.zeros_like(p)
    for b in range(p.shape[0]):
        for h in range(p.shape[1]):
            for i in range(p.shape[2]):
                dv[b, h] += torch.outer(p[b, h, i], do[b, h, i])
                dp[b, h, i] = v[b, h] @ do[b, h, i]
    return dv, dp


def dv_dp_float64(p, do, v):
    p64, do64, v64 = p.double(), do.double(), v.double()
    return (do64.mT @ p64).mT.to(v.dtype), (v64 @ do64.mT).mT.to(p.dtype)


# -- 05.4 ----------------------------------------------------------------------------------------------------------
def dq_dk_course(ds, q, k, scale):
    group = q.shape[1] // k.shape[1]
    dq = scale * ds @ k.repeat_interleave(group, dim=1)
    dk = scale * ds.mT @ q
    return dq, dk.unflatten(1, (-1, group)).sum(2)


def dq_dk_broadcast(ds, q, k, scale):
    """No key is repeated."""
    B, _, Sq, D = q.shape
    Hkv, Sk = k.shape[1], k.shape[2]
    q5, ds5 = q.reshape(B, Hkv, -1, Sq, D), ds.reshape(B, Hkv, -1, Sq, Sk)
    dq = (ds5 @ (k * scale)[:, :, None]).reshape(q.shape)
    return dq, torch.einsum("bhgij,bhgid->bhjd", ds5, q5) * scale


def dq_dk_heads(ds, q, k, scale):
    group = q.shape[1] // k.shape[1]
    dq, dk = torch.empty_like(q), torch.zeros_like(k)
    for h in reversed(range(q.shape[1])):
        dq[:, h] = (ds[:, h] * scale) @ k[:, h // group]
        dk[:, h // group] += (ds[:, h] * scale).transpose(1, 2) @ q[:, h]
    return dq, dk


def dq_dk_float64(ds, q, k, scale):
    group = q.shape[1] // k.shape[1]
    dq = scale * (ds.double() @ k.double().repeat_interleave(group, 1))
    dk = (ds.double().transpose(-1, -2) @ (scale * q.double())).view(k.shape[0], k.shape[1], group, *k.shape[2:])
    return dq.to(q.dtype), dk.sum(2).to(k.dtype)


# -- 05.5 ----------------------------------------------------------------------------------------------------------
def tiled_course(do, delta, q, k, v, lse, scale, causal=False, block=16):
    Sq, Sk = q.shape[-2], k.shape[-2]
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for j0 in range(0, Sk, block):
        k_j, v_j = k[..., j0 : j0 + block, :], v[..., j0 : j0 + block, :]
        for i0 in range(0, Sq, block):
            i1 = min(i0 + block, Sq)
            if causal and j0 > i1 - 1 + Sk - Sq:
                continue
            q_i, do_i = q[..., i0:i1, :], do[..., i0:i1, :]
            p = torch.exp(scale * q_i @ k_j.mT - lse[..., i0:i1, None])
            if causal:
                p = p.tril(i0 - j0 + Sk - Sq)
            ds = p * (do_i @ v_j.mT - delta[..., i0:i1, None])
            dq[..., i0:i1, :] += scale * ds @ k_j
            dk[..., j0 : j0 + block, :] += scale * ds.mT @ q_i
            dv[..., j0 : j0 + block, :] += p.mT @ do_i
    return dq, dk, dv


def tiled_rows_outside(do, delta, q, k, v, lse, scale, causal=False, block=16):
    """Query tiles outside, dq kept until it is finished; base 2; rows that see nothing get lse = +inf."""
    Sq, Sk = q.shape[-2], k.shape[-2]
    lse = torch.where(torch.isneginf(lse), torch.inf, lse) * 1.4426950408889634
    finished, dk, dv = [], torch.zeros_like(k), torch.zeros_like(v)
    for i0 in range(0, Sq, block):
        rows = torch.arange(i0, min(i0 + block, Sq))
        q_i, do_i = q[:, :, rows], do[:, :, rows]
        dq_i = torch.zeros_like(q_i)
        stop = min(Sk, max(int(rows[-1]) + Sk - Sq + 1, 0)) if causal else Sk
        for j0 in range(0, stop, block):
            cols = torch.arange(j0, min(j0 + block, Sk))
            s = (q_i @ k[:, :, cols].transpose(2, 3)) * (scale * 1.4426950408889634)
            if causal:
                s = s.masked_fill(cols > rows[:, None] + Sk - Sq, -torch.inf)
            p = torch.exp2(s - lse[:, :, rows, None])
            ds = p * (do_i @ v[:, :, cols].transpose(2, 3) - delta[:, :, rows, None]) * scale
            dq_i = dq_i + ds @ k[:, :, cols]
            dk[:, :, cols] += ds.transpose(2, 3) @ q_i
            dv[:, :, cols] += p.transpose(2, 3) @ do_i
        finished.append(dq_i)
    return torch.cat(finished, 2), dk, dv


def tiled_reverse(do, delta, q, k, v, lse, scale, causal=False, block=16):
    """Tiles in reverse; q scaled as it is loaded; einsum; a mask from flashlib."""
    from flashlib.algorithms.masks import spans, tile_kind

    Sq, Sk = q.shape[-2], k.shape[-2]
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype) for x in (q, k, v))
    for i0, i1 in reversed(spans(Sq, block)):
        for j0, j1 in reversed(spans(Sk, block)):
            kind = tile_kind(i0, i1, j0, j1, Sq, Sk, causal)
            if kind == "skip":
                continue
            scaled = q[:, :, i0:i1] * scale
            x = torch.einsum("bhid,bhjd->bhij", scaled, k[:, :, j0:j1]) - lse[:, :, i0:i1].unsqueeze(3)
            if kind == "partial":
                hidden = torch.arange(j0, j1) > torch.arange(i0, i1).unsqueeze(1) + (Sk - Sq)
                x = torch.where(hidden, -torch.inf, x)
            p = x.exp()
            dv[:, :, j0:j1] += torch.einsum("bhij,bhic->bhjc", p, do[:, :, i0:i1])
            ds = torch.einsum("bhic,bhjc->bhij", do[:, :, i0:i1], v[:, :, j0:j1])
            ds = ds.sub_(delta[:, :, i0:i1].unsqueeze(3)).mul_(p)
            dk[:, :, j0:j1] += torch.einsum("bhij,bhid->bhjd", ds, scaled)
            dq[:, :, i0:i1] += scale * torch.einsum("bhij,bhjd->bhid", ds, k[:, :, j0:j1])
    return dq, dk, dv


def tiled_float64(do, delta, q, k, v, lse, scale, causal=False, block=16):
    """Everything in float64, rounded at the end."""
    wide = (x.double() for x in (do, delta, q, k, v, lse))
    return tuple(x.to(q.dtype) for x in tiled_course(*wide, scale, causal, block))


# -- 05.6 ----------------------------------------------------------------------------------------------------------
def plain(q, k, v, scale):
    group = q.shape[1] // k.shape[1]
    scores = scale * torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(group, dim=1))
    lse = scores.logsumexp(-1)
    return torch.einsum("bhij,bhjd->bhid", (scores - lse[..., None]).exp(), v.repeat_interleave(group, dim=1)), lse


class Course(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        o, lse = plain(q, k, v, scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.scale = scale
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        group = q.shape[1] // k.shape[1]
        keys, values = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        p = torch.exp(ctx.scale * q @ keys.mT - lse[..., None])
        delta = (do * o).sum(-1) - dlse
        ds = p * (do @ values.mT - delta[..., None])
        dk, dv = ctx.scale * ds.mT @ q, p.mT @ do
        dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (dk, dv))
        return ctx.scale * ds @ keys, dk, dv, None


class Careful(torch.autograd.Function):
    """Head by head; only the gradients that are asked for; once differentiable; delta as rowsum(P ∘ dP)."""

    @staticmethod
    def forward(ctx, q, k, v, scale):
        o, lse = plain(q, k, v, scale)
        ctx.save_for_backward(q * scale, k, v, lse)
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, dlse):
        scaled, k, v, lse = ctx.saved_tensors
        group = scaled.shape[1] // k.shape[1]
        dq, dk, dv = torch.zeros_like(scaled), torch.zeros_like(k), torch.zeros_like(v)
        for h in range(scaled.shape[1]):
            j = h // group
            p = torch.exp(torch.baddbmm(-lse[:, h, :, None], scaled[:, h], k[:, j].mT))
            ds = torch.zeros_like(p)
            if do is not None:
                dp = do[:, h] @ v[:, j].mT
                ds += p * (dp - (p * dp).sum(-1, keepdim=True))
                dv[:, j] += p.mT @ do[:, h]
            if dlse is not None:
                ds += p * dlse[:, h, :, None]
            dq[:, h] = ds @ k[:, j] * ctx.scale
            dk[:, j] += ds.mT @ scaled[:, h]
        needed = zip((dq, dk, dv), ctx.needs_input_grad, strict=False)
        return *(g if need else None for g, need in needed), None


class Wide(torch.autograd.Function):
    """float64 inside; setup_context apart."""

    @staticmethod
    def forward(q, k, v, scale):
        return plain(q, k, v, scale)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.scale = inputs
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx, *grads):
        q, k, v, o, lse, do, dlse = (x.double() for x in (*ctx.saved_tensors, *grads))
        B, Hkv = k.shape[:2]
        q, o, do = (x.reshape(B, Hkv, -1, *x.shape[2:]) for x in (q, o, do))
        lse, dlse = (x.reshape(B, Hkv, -1, x.shape[-1], 1) for x in (lse, dlse))
        p = torch.exp(ctx.scale * torch.einsum("bhgid,bhjd->bhgij", q, k) - lse)
        dp = torch.einsum("bhgic,bhjc->bhgij", do, v)
        ds = ctx.scale * p * (dp - (do * o).sum(-1, keepdim=True) + dlse)
        dq = torch.einsum("bhgij,bhjd->bhgid", ds, k).flatten(1, 2)
        dk, dv = torch.einsum("bhgij,bhgid->bhjd", ds, q), torch.einsum("bhgij,bhgic->bhjc", p, do)
        return *(x.to(grads[0].dtype) for x in (dq, dk, dv)), None


def flash_course(q, k, v, scale):
    return Course.apply(q, k, v, scale)


def flash_careful(q, k, v, scale):
    return Careful.apply(q, k, v, scale)


def flash_wide(q, k, v, scale):
    return Wide.apply(q, k, v, scale)


RIGHT = {
    "05.1": {
        "the course's": softmax_course,
        "the whole Jacobian": softmax_jacobian,
        "Python lists": softmax_lists,
        "einsum": softmax_einsum,
        "in place on a copy": softmax_in_place,
        "float64 inside": softmax_float64,
    },
    "05.2": {
        "the course's": delta_course,
        "einsum": delta_einsum,
        "column by column, in reverse": delta_loop,
        "a matrix product": delta_product,
        "float64 inside": delta_float64,
    },
    "05.3": {
        "the course's": dv_dp_course,
        "einsum": dv_dp_einsum,
        "row by row": dv_dp_heads,
        "float64 inside, turned": dv_dp_float64,
    },
    "05.4": {
        "the course's": dq_dk_course,
        "nothing repeated": dq_dk_broadcast,
        "head by head": dq_dk_heads,
        "float64 inside": dq_dk_float64,
    },
    "05.5": {
        "the course's": tiled_course,
        "query tiles outside, base 2": tiled_rows_outside,
        "in reverse, q scaled first": tiled_reverse,
        "float64 inside": tiled_float64,
    },
    "05.6": {
        "the course's": flash_course,
        "only what is asked for": flash_careful,
        "float64 inside": flash_wide,
    },
}
