"""Right solutions of chapter 09, written differently: the grader must accept every one."""

import math

import torch
import torch.nn.functional as F


# -- 09.1 ----------------------------------------------------------------------------------------------------------
def split_heads(qkv, heads):
    """The course's."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in qkv.chunk(3, -1))
    return q, k, v


def split_by_view(qkv, heads):
    """One view, one permute."""
    B, S, width = qkv.shape
    return qkv.view(B, S, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4).unbind(0)


def split_by_slices(qkv, heads):
    """Slices; a tensor of three comes back as a list."""
    B, S, width = qkv.shape
    E, out = width // 3, []
    for i in range(3):
        out.append(qkv[:, :, i * E : (i + 1) * E].view(B, S, heads, -1).swapaxes(1, 2))
    return out


def split_by_strides(qkv, heads):
    """One view with hand-made strides, cut in three."""
    B, S, width = qkv.shape
    D, (b, s, e) = width // 3 // heads, qkv.stride()
    x = qkv.as_strided((3, B, heads, S, D), (width // 3 * e, b, D * e, s, e))
    return x[0], x[1], x[2]


def split_one_tensor(qkv, heads):
    """All in one tensor (3, B, H, S, D), handed back part by part."""
    x = torch.movedim(qkv.unflatten(-1, (3, heads, -1)), (2, 3), (0, 2))
    return tuple(x)


# -- 09.2 ----------------------------------------------------------------------------------------------------------
def norm(x):
    """LayerNorm without weights."""
    return F.layer_norm(x, x.shape[-1:])


def attention_half(x, w_qkv, w_out, heads, attend, dropout_p, training):
    """The course's."""
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (norm(x) @ w_qkv).chunk(3, -1))
    o = attend(q, k, v, causal=True, dropout_p=dropout_p if training else 0.0)
    return x + o.transpose(1, 2).flatten(2) @ w_out


def half_by_view(x, w_qkv, w_out, heads, attend, dropout_p, training):
    """Views and permutes, options by position, contiguous copies, F.linear."""
    B, S, E = x.size()
    qkv = F.linear(norm(x), w_qkv.t()).view(B, S, 3, heads, E // heads).permute(2, 0, 3, 1, 4).contiguous()
    if not training:
        dropout_p = 0.0
    y = attend(qkv[0], qkv[1], qkv[2], True, dropout_p).transpose(1, 2).contiguous().view(B, S, E)
    return F.linear(y, w_out.t()) + x


def half_head_by_head(x, w_qkv, w_out, heads, attend, dropout_p, training):
    """Each head's own columns and its own rows of w_out; added up."""
    h, E = norm(x), x.shape[-1]
    wq, wk, wv = (w.split(E // heads, 1) for w in w_qkv.split(E, 1))
    q, k, v = (torch.stack([h @ w for w in ws], 1) for ws in (wq, wk, wv))
    o = attend(q, k, v, dropout_p=training * dropout_p, causal=True)
    out = x
    for i, w in enumerate(w_out.split(E // heads, 0)):
        out = out + o[:, i] @ w
    return out


def half_einsum(x, w_qkv, w_out, heads, attend, dropout_p, training):
    """einsum, its own norm, w_qkv as (E, 3, H, D)."""
    d = x - x.mean(-1, keepdim=True)
    h = d * torch.rsqrt(d.square().mean(-1, keepdim=True) + 1e-5)
    w = w_qkv.unflatten(1, (3, heads, -1))
    q, k, v = torch.einsum("bse,enhd->nbhsd", h, w)
    p = dropout_p if training else 0
    o = attend(q=q, k=k, v=v, causal=True, dropout_p=p)
    return x + torch.einsum("bhsd,hde->bse", o, w_out.unflatten(0, (heads, -1)))


# -- 09.3 ----------------------------------------------------------------------------------------------------------
def next_byte_loss(logits, tokens, lengths):
    """The course's."""
    x, targets = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32)), tokens[:, 1:]
    m = x.amax(-1)
    lse = m + torch.exp(x - m[..., None]).sum(-1).log()
    pay = lse - x.gather(-1, targets[..., None])[..., 0]
    there = torch.arange(1, tokens.shape[1]) < lengths[:, None]
    return pay[there].mean()


def loss_one_by_one(logits, tokens, lengths):
    """A Python loop over sequences and positions, in float64."""
    total, count = 0.0, 0
    for row, text, n in zip(logits.double(), tokens.tolist(), lengths.tolist(), strict=True):
        for t in range(n - 1):
            x = row[t] - row[t].max()
            total = total - (x[text[t + 1]] - x.exp().sum().log())
            count += 1
    return (total / count).to(torch.promote_types(logits.dtype, torch.float32))


def loss_masked(logits, tokens, lengths):
    """A mask that is multiplied, a divisor that is counted; one-hot instead of gather; base 2."""
    x = logits[:, :-1, :]
    x = x if x.dtype == torch.float64 else x.float()
    x = x - x.max(dim=-1, keepdim=True)[0].detach()
    l = torch.exp2(x / math.log(2)).sum(-1)
    hot = F.one_hot(tokens[:, 1:], x.shape[-1]).to(x.dtype)
    log_p = (x * hot).sum(-1) - torch.log2(l) * math.log(2)
    mask = (torch.arange(x.shape[1])[None] + 1 < lengths[:, None]).to(x.dtype)
    return -(log_p * mask).sum() / mask.sum()


def loss_flat(logits, tokens, lengths):
    """Flat rows of all sequences, cut to length first."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    rows = torch.cat([x[: n - 1] for x, n in zip(logits, lengths, strict=True)]).to(wide)
    targets = torch.cat([t[1:n] for t, n in zip(tokens, lengths, strict=True)])
    top = rows.max(1, keepdim=True).values
    p = torch.exp(rows - top)
    log_p = rows - top - p.sum(1, keepdim=True).log()
    return -log_p[torch.arange(len(rows)), targets].sum() / len(rows)


def loss_in_blocks(logits, tokens, lengths):
    """The vocabulary in blocks of 64, with a running maximum; float32 throughout."""
    x = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32))
    m, l = x.new_full(x.shape[:2], -torch.inf), x.new_zeros(x.shape[:2])
    for block in x.split(64, -1):
        new = torch.maximum(m, block.amax(-1))
        l, m = l * torch.exp(m - new) + torch.exp(block - new[..., None]).sum(-1), new
    pay = m + l.log() - x.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    real = torch.arange(1, tokens.shape[1]) < lengths[:, None]
    return torch.where(real, pay, 0).sum() / (lengths - 1).sum()


RIGHT = {
    "09.1": {
        "the course's": split_heads,
        "one view": split_by_view,
        "slices": split_by_slices,
        "strides": split_by_strides,
        "one tensor": split_one_tensor,
    },
    "09.2": {
        "the course's": attention_half,
        "views and linear": half_by_view,
        "head by head": half_head_by_head,
        "einsum": half_einsum,
    },
    "09.3": {
        "the course's": next_byte_loss,
        "one by one": loss_one_by_one,
        "masked, one-hot": loss_masked,
        "flat": loss_flat,
        "in blocks": loss_in_blocks,
    },
}
