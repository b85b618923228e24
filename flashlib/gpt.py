"""A GPT-2 with a slot for any attention (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

Everything is PyTorch's but one line in `Attention.forward`, which calls what the slot holds. Training lives in
`flashlib.training`, chapter 09 uses both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import flashlib

#: q, k, v (B, H, S, D), causal, dropout_p → o (B, H, S, D)
Slot = Callable[..., Tensor]


@dataclass(frozen=True)
class Config:
    """Sizes of a GPT. ``context`` is the longest sequence, ``vocab`` the number of tokens.

    ``checkpoint`` computes each block's activations a second time in the backward instead of keeping them.
    """

    layers: int = 12
    heads: int = 12
    width: int = 768
    context: int = 1024
    vocab: int = 50257
    dropout: float = 0.0
    checkpoint: bool = False

    def __post_init__(self):
        """Refuse a width that the heads do not divide."""
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}")


CONFIGS = {
    "tiny": Config(layers=2, heads=4, width=64, context=128, vocab=256),  # bytes; seconds on a CPU
    "small": Config(layers=4, heads=4, width=128, context=256, vocab=256),
    "gpt2": Config(),  # 124M parameters
    "gpt2-medium": Config(layers=24, heads=16, width=1024),
}


class Attention(nn.Module):
    """Causal self-attention; the slot does the attention itself."""

    def __init__(self, config: Config, slot: Slot):
        super().__init__()
        self.heads, self.dropout, self.slot = config.heads, config.dropout, slot
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """x (B, S, width) → (B, S, width); with a cache x holds the newest positions only."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))  # (B, H, S, D)
        if cache is not None:
            o = cache.attend(self, q, k, v)
        else:
            o = self.slot(q, k, v, causal=True, dropout_p=self.dropout if self.training else 0.0)
        return self.out(o.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then a two-layer network; each behind a LayerNorm and added to what came in."""

    def __init__(self, config: Config, slot: Slot):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = Attention(config, slot)
        self.up, self.down = nn.Linear(config.width, 4 * config.width), nn.Linear(4 * config.width, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, S, width) → (B, S, width)."""
        x = x + self.drop(self.attention(self.norm1(x), cache))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))


class GPT(nn.Module):
    """Token and position embeddings, blocks, a LayerNorm, and the embedding again as the output layer.

    Parameters
    ----------
    config : Config
    slot : an attention, called as ``slot(q, k, v, causal=True, dropout_p=…)``; or a name of `flashlib.attention`'s impl
    """

    def __init__(self, config: Config, slot: Slot | str = "auto"):
        super().__init__()
        if isinstance(slot, str):
            slot = partial(flashlib.attention, impl=slot)
        self.config = config
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, slot) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.apply(self._initial)
        for name, p in self.named_parameters():  # what is added to the residual stream, 2 · layers times
            if name.endswith(("out.weight", "down.weight")):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * config.layers))

    @staticmethod
    def _initial(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, targets: Tensor | None = None, cache: Cache | None = None):
        """Logits (B, S, vocab); with targets (B, S) the mean cross-entropy in nats instead.

        Raises
        ------
        ValueError
            More positions than the context holds.
        """
        start = 0 if cache is None else cache.length
        end = start + tokens.shape[1]
        if end > self.config.context:
            raise ValueError(f"{end} positions, the context holds {self.config.context}")
        x = self.drop(self.tokens(tokens) + self.positions(torch.arange(start, end, device=tokens.device)))
        for block in self.blocks:
            if self.config.checkpoint and self.training and cache is None:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x, cache)
        if cache is not None:
            cache.length = end
        logits = self.norm(x) @ self.tokens.weight.T
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(
        self, tokens: Tensor, n: int, *, cached: bool = True, temperature: float = 0.0, seed: int = 0
    ) -> Tensor:
        """Append n tokens to (B, S); greedy at temperature 0, which takes the first of equal logits.

        ``cached`` computes each position once and decodes against a `Cache`; without it every step starts again.
        """
        self.eval()
        generator = torch.Generator(device=tokens.device).manual_seed(seed)
        cache = Cache(self.config, tokens.shape[0], device=tokens.device) if cached else None
        new = tokens
        for _ in range(n):
            logits = self(new if cached else tokens, cache=cache)[:, -1]
            if temperature > 0:
                new = torch.multinomial(F.softmax(logits / temperature, -1), 1, generator=generator)
            else:
                new = logits.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, new], 1)
        return tokens


class Cache:
    """Keys and values of all layers, filled position by position; attention over it is `flashlib.decode`.

    Parameters
    ----------
    config : the model's; B : batch; splits, impl : as `flashlib.decode` takes them
    """

    def __init__(self, config: Config, B: int, *, splits: int | None = None, impl: str = "auto", device=None):
        self.config, self.B, self.device = config, B, device
        self.options = {"splits": splits, "impl": impl}
        self.length = 0
        self.kv: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the new keys and values (B, H, S, D) of a layer and attend over all it holds."""
        if layer not in self.kv:
            shape = (self.B, k.shape[1], self.config.context, k.shape[3])
            self.kv[layer] = k.new_zeros(shape), v.new_zeros(shape)
        keys, values = self.kv[layer]
        end = self.length + k.shape[2]
        keys[:, :, self.length : end], values[:, :, self.length : end] = k, v
        lengths = torch.full((self.B,), end, device=q.device)
        return flashlib.decode(q, keys, values, lengths, **self.options)
