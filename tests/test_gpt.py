"""The GPT of chapter 09: the slot changes nothing but rounding, the cache nothing at all."""

import pytest
import torch

from flashlib.gpt import CONFIGS, GPT, Config
from flashlib.training import batches, text, train

TINY = Config(layers=2, heads=2, width=32, context=48, vocab=256)


def test_every_slot_trains_alike():
    """Eight steps on the same batches: losses of all slots lie together, and the loss falls."""
    losses = {}
    for slot in ("naive", "tiled", "sdpa"):
        _, history = train(TINY, slot, steps=8, B=4, seed=1, progress=False)
        losses[slot] = torch.tensor(history.losses)
        assert history.peak_bytes > 0 and history.tokens_per_s > 0
    first = {slot: loss[0].item() for slot, loss in losses.items()}
    assert max(first.values()) - min(first.values()) < 8 * torch.finfo(torch.float32).eps * first["naive"]
    assert losses["naive"][-1] < losses["naive"][0] - 0.1


def test_attention_costs_the_memory_it_is_said_to():
    """At 256 positions the naive slot keeps S × S arrays for the backward, the tiled one does not."""
    config = Config(layers=1, heads=4, width=32, context=256, vocab=256)
    peaks = {slot: train(config, slot, steps=1, B=4, progress=False)[1].peak_bytes for slot in ("naive", "tiled")}
    assert peaks["naive"] - peaks["tiled"] > 4 * 4 * 256 * 256 * 4  # B · H · S² float32, at least once


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_cache_gives_the_same_tokens(temperature):
    torch.manual_seed(3)
    model = GPT(TINY, "tiled")
    start = text()[100:112].reshape(2, 6)
    plain = model.generate(start, 30, cached=False, temperature=temperature, seed=5)
    assert torch.equal(plain, model.generate(start, 30, cached=True, temperature=temperature, seed=5))
    assert plain.shape == (2, 36) and len(set(plain.flatten().tolist())) > 2


def test_checkpointing_gives_the_same_gradients():
    x, y = next(batches(text(), 2, 20, seed=4))
    grads = []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        model = GPT(Config(layers=2, heads=2, width=32, context=48, vocab=256, checkpoint=checkpoint), "tiled")
        model(x, y).backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_dropout_only_in_training():
    torch.manual_seed(0)
    model = GPT(Config(layers=1, heads=2, width=32, context=48, vocab=256, dropout=0.5), "tiled")
    x = text()[:20][None]
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_gpt2_has_its_124_million_parameters():
    with torch.device("meta"):
        model = GPT(CONFIGS["gpt2"])
    assert sum(p.numel() for p in model.parameters()) == 124_439_808


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match="width must be a multiple of heads, got 30 and 4"):
        Config(heads=4, width=30)
    with pytest.raises(ValueError, match="49 positions, the context holds 48"):
        GPT(TINY)(torch.zeros(1, 49, dtype=torch.long))
    with pytest.raises(ValueError, match="5 tokens is too short for windows of 8"):
        next(batches(torch.zeros(5, dtype=torch.long), 1, 8))
