"""The two dispatch modes behind `ops` and `peak`. The one module of the instruments that imports torch at the top:
import it inside functions only.

A dispatch mode is called for every aten op after autograd has done its part, so it sees forward and backward alike.
What a C++ kernel allocates for itself and frees before it returns stays hidden from it.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flashlib.instruments.ops import OpRow

UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
OVERWRITES = {"copy_", "fill_", "zero_", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_",
              "normal_", "random_", "uniform_"}  # fmt: skip
PICKS = {"index", "index_select", "gather", "embedding", "take"}
SCATTERS = {"index_put", "index_put_", "_index_put_impl_", "scatter", "scatter_", "scatter_add", "scatter_add_",
            "index_add", "index_add_", "index_copy", "index_copy_"}  # fmt: skip


def tensors_in(*trees: Any) -> list[torch.Tensor]:
    """The tensors in nested arguments, in order."""
    return [leaf for leaf in tree_leaves(trees) if isinstance(leaf, torch.Tensor)]


def storage_key(tensor: torch.Tensor) -> int:
    """What identifies a tensor's storage while it lives."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"only strided tensors can be measured, got layout {tensor.layout}")
    return tensor.untyped_storage()._cdata


def distinct_bytes(tensor: torch.Tensor) -> int:
    """Bytes that exist behind a tensor: a dimension of stride 0 holds one element, however long it looks."""
    if tensor.numel() == 0:
        return 0
    elements = math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0)
    # Overlapping windows (as_strided, unfold) can count an element twice, but no more than the storage holds.
    return min(elements * tensor.element_size(), tensor.untyped_storage().nbytes())


def moved(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[int, int]:
    """Bytes (read, written) of one aten op under the rules of `ops.count_ops`."""
    name = func.overloadpacket.__name__
    schema = func._schema
    if name in UNINITIALISED:
        return 0, 0
    values = [args[i] if i < len(args) else kwargs.get(a.name) for i, a in enumerate(schema.arguments)]
    writes = [(a, v) for a, v in zip(schema.arguments, values, strict=True) if a.alias_info and a.alias_info.is_write]
    targets = tensors_in([v for _, v in writes])
    ins = {_identity(t): t for t in tensors_in(args, kwargs)}  # the same tensor twice is read once
    known = {storage_key(t) for t in ins.values()}
    new = [t for t in tensors_in(out) if storage_key(t) not in known]
    if not targets and not new and tensors_in(out):
        return 0, 0  # a view: every result lies in an operand's storage
    if name.endswith("_like") or name.startswith("new_"):
        return 0, sum(map(distinct_bytes, new))  # the operand only lends its shape
    unread = {_identity(t) for t in tensors_in([v for a, v in writes if a.is_out or name in OVERWRITES])}
    operands = [t for key, t in ins.items() if key not in unread]
    results = [*new, *targets]
    if name in SCATTERS or name in PICKS:
        return _indexed(name, dict(zip((a.name for a in schema.arguments), values, strict=True)), operands, results)
    return sum(map(distinct_bytes, operands)), sum(map(distinct_bytes, results))


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    return storage_key(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _indexed(
    name: str, given: dict[str, Any], operands: list[torch.Tensor], results: list[torch.Tensor]
) -> tuple[int, int]:
    """Indexing touches the elements it picks; the rest of the big tensor stays where it is."""
    whole, others = operands[0], operands[1:]
    rest = sum(map(distinct_bytes, others))
    if name in PICKS:
        picked = sum(map(distinct_bytes, results))
        return rest + min(picked, distinct_bytes(whole)), picked
    if not name.endswith("_"):  # out of place: the whole is copied first
        return rest + distinct_bytes(whole), distinct_bytes(whole)
    if "index_put" in name:
        hits, adds = _hits(whole, given["indices"]), bool(given["accumulate"])
    else:
        hits, adds = others[-1].numel(), "add" in name  # the source, or the indices where a number is scattered
    nbytes = min(hits * whole.element_size(), distinct_bytes(whole))
    return rest + (nbytes if adds else 0), nbytes


def _hits(whole: torch.Tensor, indices: Any) -> int:
    """How many elements `whole[indices]` names."""
    shapes, axis, left = [], 0, 1
    for index in indices:
        if index is None:
            left *= whole.shape[axis]
            axis += 1
        elif index.dtype in (torch.bool, torch.uint8):
            shapes.append((int(index.sum()),))
            axis += index.dim()
        else:
            shapes.append(tuple(index.shape))
            axis += 1
    return math.prod(torch.broadcast_shapes(*shapes)) * left * math.prod(whole.shape[axis:])


class OpCounter(TorchDispatchMode):
    """Appends one `OpRow` an op to `rows`."""

    def __init__(self, rows: list[OpRow]) -> None:
        super().__init__()
        self.rows = rows

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: else torch imports its compiler, seconds of it, before the first op."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        read, written = moved(func, args, kwargs, out)
        spell = [" ".join(str(tuple(t.shape)) for t in tensors_in(tree)) for tree in ((args, kwargs), out)]
        self.rows.append(OpRow(func.overloadpacket.__name__, " → ".join(spell).strip(), read, written))
        return out


class LiveStorages(TorchDispatchMode):
    """Follows every storage that is made while it is on, until it dies. Sizes in bytes.

    `.now` and `.peak` are the live and the most live bytes, `.at_peak` what lived then: storage → (op, shape, bytes).
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[str, tuple[int, ...], int]] = {}
        self.at_peak: dict[int, tuple[str, tuple[int, ...], int]] = {}
        self.now = self.peak = 0
        self.devices: set[str] = set()
        self._watch: dict[int, weakref.ref[Any]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As in `OpCounter`."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        # Results that lie in an operand's storage are not new. lift_fresh brings in what torch.tensor() has just made;
        # memory borrowed from NumPy comes the same way, but its storage cannot be resized.
        fresh = name == "lift_fresh" and out.untyped_storage().resizable()
        old = set() if fresh else {storage_key(t) for t in tensors_in(args, kwargs)}
        for tensor in tensors_in(out):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self.live:
                self._resized(key, storage.nbytes())
            elif key not in old and tensor.device.type != "meta":
                self._born(key, storage, name, tensor)
        return out

    def close(self) -> None:
        """Stop following."""
        self._watch.clear()

    def _born(self, key: int, storage: Any, op: str, tensor: torch.Tensor) -> None:
        self.live[key] = (op, tuple(tensor.shape), storage.nbytes())
        self.devices.add(tensor.device.type)
        # torch keeps one Python object for a storage's whole life, so this fires when the memory is given back.
        self._watch[key] = weakref.ref(storage, lambda _: self._died(key))
        self._grow(storage.nbytes())

    def _resized(self, key: int, nbytes: int) -> None:
        op, shape, before = self.live[key]
        if nbytes != before:
            self.live[key] = (op, shape, nbytes)
            self._grow(nbytes - before)

    def _grow(self, nbytes: int) -> None:
        self.now += nbytes
        if self.now > self.peak:
            self.peak, self.at_peak = self.now, dict(self.live)

    def _died(self, key: int) -> None:
        self.now -= self.live.pop(key)[2]
        self._watch.pop(key, None)
