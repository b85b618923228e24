"""A paged KV cache, small enough to read: sequences of any length share one pool of pages.

Kwon et al. 2023 ("PagedAttention", arXiv 2309.06180). A cache with room for the longest sequence wastes what shorter
ones do not fill. Here each sequence owns a list of pages; key j lies at place j % page of its page j // page. At most
one page a sequence is partly empty.
"""

import torch
from torch import Tensor

from flashlib.algorithms.decode import decode


class PagedCache:
    """Keys and values of B sequences in a pool of pages.

    Parameters
    ----------
    B, Hkv, D, Dv : sizes of what is stored; ``Dv`` is D if left out
    pages : pages in the pool, shared by all sequences
    page : keys a page
    dtype, device : as for torch tensors

    Attributes
    ----------
    k : (pages, Hkv, page, D), v : (pages, Hkv, page, Dv)
    lengths : (B,) keys that each sequence holds
    owned : for each sequence the pages it owns, in order
    """

    def __init__(
        self, B: int, Hkv: int, D: int, Dv: int | None = None, *, pages: int, page: int = 16, dtype=None, device=None
    ):
        self.page = page
        self.k = torch.empty(pages, Hkv, page, D, dtype=dtype, device=device)
        self.v = torch.empty(pages, Hkv, page, D if Dv is None else Dv, dtype=dtype, device=device)
        self.lengths = torch.zeros(B, dtype=torch.int32, device=device)
        self.owned: list[list[int]] = [[] for _ in range(B)]
        self.free = list(range(pages))[::-1]

    def append(self, b: int, k: Tensor, v: Tensor) -> None:
        """Add keys (Hkv, n, D) and values (Hkv, n, Dv) to sequence b; takes pages from the pool as they are needed.

        Raises
        ------
        MemoryError
            The pool has too few free pages: nothing is written then.
        """
        n, start = k.shape[1], int(self.lengths[b])
        missing = -(-(start + n) // self.page) - len(self.owned[b])
        if missing > len(self.free):
            raise MemoryError(f"sequence {b} needs {missing} more pages, the pool has {len(self.free)} free")
        self.owned[b] += [self.free.pop() for _ in range(missing)]
        at = torch.arange(start, start + n)
        pages = torch.tensor(self.owned[b], dtype=torch.long)[at // self.page]
        self.k[pages, :, at % self.page] = k.transpose(0, 1)
        self.v[pages, :, at % self.page] = v.transpose(0, 1)
        self.lengths[b] += n

    def release(self, b: int) -> None:
        """Sequence b has ended: its pages go back to the pool."""
        self.free += self.owned[b][::-1]
        self.owned[b], self.lengths[b] = [], 0

    def table(self) -> Tensor:
        """(B, most pages a sequence owns) int32: which page holds keys page·c … of each sequence; 0 past its end."""
        width = max(1, *(len(o) for o in self.owned)) if self.owned else 1
        rows = [[*o, *[0] * (width - len(o))] for o in self.owned]
        return torch.tensor(rows, dtype=torch.int32, device=self.k.device).reshape(len(self.owned), width)

    def gathered(self) -> tuple[Tensor, Tensor]:
        """The cache as `flashlib.decode` takes it, copied: k (B, Hkv, S, D), v (B, Hkv, S, Dv)."""
        table = self.table().long()
        return tuple(x[table].transpose(1, 2).flatten(2, 3) for x in (self.k, self.v))

    def attend(
        self, q: Tensor, *, scale: float | None = None, splits: int = 1, impl: str = "torch"
    ) -> tuple[Tensor, Tensor]:
        """(o, lse) of `flashlib.decode` for queries (B, Hq, Sq, D). "triton" reads the pages where they lie."""
        if impl == "triton":
            from flashlib.algorithms import triton_decode

            scale = q.shape[-1] ** -0.5 if scale is None else scale
            return triton_decode.split_attention(q, self.k, self.v, self.lengths, scale, splits, self.table())
        k, v = self.gathered()
        o, lse = decode(q, k, v, self.lengths, scale=scale, splits=splits, return_lse=True, impl="torch")
        return o, lse
