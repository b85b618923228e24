"""An outcome as bytes, and back. What comes back is data from a stranger: numbers, words and nothing that runs.

A message is a length, a header in JSON and the arrays' bytes. Every size, name and shape in it is checked.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np

from flashlib.grading.case import Outcome, Trouble, Value

DTYPES = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "longdouble", "bfloat16",
}  # fmt: skip
LIBRARIES = ("numpy", "torch", "python")
HEADER = struct.Struct("<II")  # bytes of JSON, bytes of arrays
MOST_JSON = 1 << 20
MOST_RESULTS, MOST_TEXT, MOST_CALLED = 64, 2000, 500


class BadMessage(ValueError):
    """What came over the pipe is no answer; the message says why."""


def pack(outcome: Outcome, most: int) -> bytes:
    """The outcome as one message; one with more than ``most`` bytes of arrays becomes a trouble that says so."""
    size = sum(v.array.nbytes for v in outcome.results)
    if size > most:
        says = f"it returned {size >> 20} MiB, more than {most >> 20} MiB"
        return pack(Outcome(trouble=Trouble("TooMuch", says)), most)
    arrays = [np.ascontiguousarray(v.array) for v in outcome.results]
    head = {
        "results": [
            {"array": _name(a.dtype), "shape": list(v.array.shape), "dtype": v.dtype, "library": v.library}
            for a, v in zip(arrays, outcome.results, strict=True)
        ],
        "trouble": None if outcome.trouble is None else list(outcome.trouble),
        "changed": list(outcome.changed),
        "measures": outcome.measures,
        "called": list(outcome.called[:MOST_CALLED]),
        "seconds": outcome.seconds,
    }
    return frame(head, b"".join(a.tobytes() for a in arrays))


def frame(head: dict[str, Any], body: bytes = b"") -> bytes:
    """A message of a JSON header and raw bytes."""
    text = json.dumps(head, default=_plain_number).encode()
    return HEADER.pack(len(text), len(body)) + text + body


def _name(dtype: np.dtype) -> str:
    return "longdouble" if dtype == np.longdouble and dtype != np.float64 else str(dtype)


def _plain_number(x: Any) -> Any:
    if isinstance(x, np.generic):
        return x.item()
    raise TypeError(f"{type(x).__name__} is no plain data")


def unpack(head: bytes, body: bytes) -> Outcome:
    """The outcome in a message.

    Raises
    ------
    BadMessage
        Anything in it is not as `pack` writes it.
    """
    raw = parse(head)
    results, at = [], 0
    for item in _list(raw.get("results"), MOST_RESULTS):
        if not isinstance(item, dict):
            raise BadMessage("a result is no object")
        kind, dtype, library = item.get("array"), item.get("dtype"), item.get("library")
        if kind not in DTYPES or kind == "bfloat16" or not isinstance(dtype, str) or library not in LIBRARIES:
            raise BadMessage("a result has an unknown type")
        real = np.dtype(kind)
        shape = tuple(_list(item.get("shape"), 32))
        if not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
            raise BadMessage("a result has no shape")
        size = math.prod(shape) * real.itemsize
        if at + size > len(body):
            raise BadMessage("a result is shorter than its shape")
        array = np.frombuffer(body, real, math.prod(shape), at).reshape(shape).copy()
        if kind == "bool" and array.size and array.view(np.uint8).max() > 1:
            raise BadMessage("a bool is neither 0 nor 1")
        results.append(Value(array, words(dtype, 40), str(library)))
        at += size
    if at != len(body):
        raise BadMessage("there are more bytes than results")
    return Outcome(
        tuple(results),
        _trouble(raw.get("trouble")),
        tuple(words(c, 100) for c in _list(raw.get("changed"), 100)),
        _measures(raw.get("measures")),
        tuple(words(c, 200) for c in _list(raw.get("called"), MOST_CALLED)),
        float(raw["seconds"]) if isinstance(raw.get("seconds"), (int, float)) else 0.0,
    )


def parse(head: bytes) -> dict[str, Any]:
    """The header as a dict, or BadMessage."""
    try:
        raw = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise BadMessage("the header is no JSON") from error
    if not isinstance(raw, dict):
        raise BadMessage("the header is no object")
    return raw


def words(x: Any, most: int = MOST_TEXT) -> str:
    """A short text that can be written to a file and shown: no lone surrogates, no control characters.

    Raises
    ------
    BadMessage
        ``x`` is no text.
    """
    if not isinstance(x, str):
        raise BadMessage("a word is no text")
    text = x[:most].encode("utf-8", "replace").decode("utf-8", "replace")
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def _list(x: Any, most: int) -> list[Any]:
    if not isinstance(x, list) or len(x) > most:
        raise BadMessage("a list is missing or too long")
    return x


def _trouble(x: Any) -> Trouble | None:
    if x is None:
        return None
    if not isinstance(x, list) or len(x) != 4 or type(x[3]) is not int:
        raise BadMessage("trouble is not four words")
    return Trouble(words(x[0], 100), words(x[1]), words(x[2], 300), min(max(x[3], 0), 10**6))


def _measures(x: Any, depth: int = 0) -> Any:
    """Numbers, words, lists and dicts of them, four deep at most."""
    if depth == 0 and not isinstance(x, dict):
        raise BadMessage("measures are no object")
    if isinstance(x, bool) or (isinstance(x, (int, float)) and abs(x) < 1e300):
        return x
    if isinstance(x, str):
        return words(x, 300)
    if depth < 4 and isinstance(x, list) and len(x) <= 1000:
        return [_measures(y, depth + 1) for y in x]
    if depth < 4 and isinstance(x, dict) and len(x) <= 1000:
        return {words(k, 100): _measures(y, depth + 1) for k, y in x.items()}
    raise BadMessage("a measure is neither a number nor a word")
