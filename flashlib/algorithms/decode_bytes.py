"""How many bytes the two kernels of `flashlib.algorithms.triton_decode` move, by the formula."""

from collections.abc import Sequence


def decode_bytes(
    lengths: Sequence[int], Hq: int, Hkv: int, Sq: int, D: int, Dv: int, *, itemsize: int, splits: int,
    block_r: int = 16, paged: bool = False,
) -> tuple[dict[str, int], dict[str, int]]:  # fmt: skip
    """Bytes read and bytes written, by the kernels' names for their tensors.

    Each key and value that a sequence holds is read once by every tile of rows of its KV head, whatever ``splits`` is;
    each split reads the queries again. Between the kernels every split leaves one o and one lse a row, in float32.

    Parameters
    ----------
    lengths : keys that each sequence holds
    Hq, Hkv, Sq, D, Dv : as in `flashlib.decode`
    itemsize : bytes of one element of q, k, v and o
    splits, block_r : parts of the keys, and rows a tile: a KV head has Hq/Hkv · Sq of them
    paged : the page of every key is looked up in a table, 4 bytes each time
    """
    rows = len(lengths) * Hq * Sq
    tiles = -(-(Hq // Hkv) * Sq // block_r) if Hkv else 0
    keys = tiles * Hkv * sum(lengths)  # loads of a key
    between = {"O": splits * rows * Dv * 4, "LSE": splits * rows * 4}
    read = {
        "LENGTHS": splits * tiles * Hkv * len(lengths) * 4, "Q": splits * rows * D * itemsize,
        "K": keys * D * itemsize, "V": keys * Dv * itemsize, **between,
    }  # fmt: skip
    if paged:
        read["TABLE"] = keys * 4
    return read, between | {"OUT": rows * Dv * itemsize, "LSE_OUT": rows * 4}
