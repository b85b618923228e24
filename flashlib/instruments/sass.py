"""Read what the assembler made: registers and spills, and the instructions of the loops that multiply tiles.

How a loop is found. The SASS of a kernel is cut into basic blocks; a branch to a block that every way to the branch has
passed through closes a loop, and the loop is all blocks from which the branch is reached without leaving through that
block (a "natural loop"). Of these, the loops that hold the dots and have no smaller such loop inside are reported.

Limits. Each instruction counts once, however often it runs: a body that the assembler unrolled counts as it stands, and
so does a rare branch or a waiting loop inside the body. Indirect jumps and calls are not followed. Without tensor cores
the dots are plain multiply-adds, and the loops taken are those with a tenth or more of the most multiply-adds of any.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from flashlib.instruments.sass_kinds import by_kind

_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P[T0-9]+)\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);", re.MULTILINE)
_SCHEDULE = re.compile(
    r"(^|\s+)[&?]\w.*$"
)  # as in "BRA 0x1310  &req={4}  ?trans6": some assemblers add what to wait for
_USAGE = re.compile(r"REG:(\d+)\s+STACK:(\d+)\s+SHARED:(\d+)\s+LOCAL:(\d+)")
_ENDS = ("EXIT", "RET", "BRX", "JMX", "BPT")
_FMA = ("FFMA", "FFMA2", "FFMA32I", "HFMA2", "DFMA")


@dataclass(frozen=True)
class Counts:
    """Instructions of one loop body, each once: by kind, by mnemonic, and all.

    `tensor_core`: matrix instructions (HMMA, HGMMA, UTCHMMA …); `fma`: floating multiply-adds; `special_function`: MUFU
    (2ˣ, reciprocal …); `load_store`: what touches global, shared, local or tensor memory; `spills`: those of them in
    local memory.
    """

    tensor_core: int
    fma: int
    special_function: int
    load_store: int
    spills: int
    total: int
    by_name: dict[str, int] = field(repr=False)

    @property
    def kinds(self) -> dict[str, int]:
        """Where they go, by `sass_kinds.KINDS`; the sum is `total`."""
        return by_kind(self.by_name)


def count(names: list[str]) -> Counts:
    """Count mnemonics (with their suffixes, ``MUFU.EX2``) by kind."""
    heads, kinds = Counter(name.split(".")[0] for name in names), by_kind(names)
    return Counts(
        tensor_core=kinds["dot"],
        fma=sum(heads[head] for head in _FMA),
        special_function=kinds["exp2"],
        load_store=kinds["load, store"],
        spills=heads["LDL"] + heads["STL"],
        total=sum(kinds.values()),
        by_name=dict(Counter(names).most_common()),
    )


def usage(text: str) -> tuple[int, int]:
    """(registers, bytes of stack) a thread, from ``cuobjdump -res-usage``. Triton keeps only spills on the stack."""
    found = _USAGE.findall(text)
    if not found:
        raise ValueError(f"no line with REG: and STACK: in the output of cuobjdump -res-usage: {text[:200]!r}")
    return max(int(f[0]) for f in found), max(int(f[1]) + int(f[3]) for f in found)


def instructions(sass: str) -> list[tuple[int, bool, str, str]]:
    """(address, under a predicate?, mnemonic, operands) of each instruction in the output of ``cuobjdump -sass``."""
    return [
        (int(at, 16), bool(p) and "PT" not in p, name, _SCHEDULE.sub("", rest.strip()))
        for at, p, name, rest in _LINE.findall(sass)
    ]


def dot_loops(sass: str) -> list[Counts]:
    """The innermost loops that hold dots, in the order of their addresses; empty if the dots lie in no loop."""
    code = instructions(sass)
    bodies = [(min(body), count([code[i][2] for i in sorted(body)]), body) for body in _loops(code)]
    tensor = any(name.split(".")[0].endswith("MMA") for _, _, name, _ in code)
    weight = [c.tensor_core if tensor else c.fma for _, c, _ in bodies]
    least = 1 if tensor else max(2, max(weight, default=0) / 10)
    holding = [(*b, w) for b, w in zip(bodies, weight, strict=True) if w >= least]
    inner = [b for b in holding if not any(other[2] < b[2] for other in holding)]
    return [counts for _, counts, _, _ in sorted(inner, key=lambda b: b[0])]


def _loops(code: list[tuple[int, bool, str, str]]) -> list[set[int]]:
    """Natural loops as sets of instruction indices; loops with one header are one loop."""
    at = {address: i for i, (address, *_) in enumerate(code)}
    jumps: dict[int, int] = {}
    for i, (_, _, name, rest) in enumerate(code):
        target = re.search(r"(?:^|[\s,`(])0x([0-9a-f]+)\)?\s*$", rest)
        if name.split(".")[0] in ("BRA", "JMP") and target and int(target[1], 16) in at:
            jumps[i] = at[int(target[1], 16)]
    starts = sorted(
        {0, *jumps.values(), *(i + 1 for i, c in enumerate(code) if _leaves(c) or i in jumps)} - {len(code)}
    )
    ends = dict(zip(starts, [*starts[1:], len(code)], strict=True))
    after: dict[int, list[int]] = {}
    for start, end in ends.items():
        last = code[end - 1]
        falls = end < len(code) and not (_leaves(last) and _always(last))
        after[start] = [*([end] if falls else []), *([jumps[end - 1]] if end - 1 in jumps else [])]
    loops: dict[int, set[int]] = {}
    for header, back in _back_edges(starts, after):
        body, todo = loops.setdefault(header, {header}), [back]
        while todo:
            block = todo.pop()
            if block not in body:
                body.add(block)
                todo += [b for b in starts if block in after[b]]
    return [{i for b in body for i in range(b, ends[b])} for body in loops.values()]


def _back_edges(starts: list[int], after: dict[int, list[int]]) -> list[tuple[int, int]]:
    """(header, block) for each branch from a block to a header that dominates it, among the blocks that are reached."""
    before: dict[int, list[int]] = {b: [] for b in starts}
    reached, todo = set(), [0]
    while todo:
        block = todo.pop()
        if block not in reached:
            reached.add(block)
            todo += after[block]
    for block in reached:
        for b in after[block]:
            before[b].append(block)
    dominators = {b: {b} if b == 0 else set(reached) for b in reached}
    changed = True
    while changed:
        changed = False
        for b in sorted(reached - {0}):
            new = {b} | set.intersection(*(dominators[p] for p in before[b]))
            changed, dominators[b] = changed or new != dominators[b], new
    return [(h, b) for b in reached for h in after[b] if h in dominators[b]]


def _leaves(instruction: tuple[int, bool, str, str]) -> bool:
    return instruction[2].split(".")[0] in ("BRA", "JMP", *_ENDS)


def _always(instruction: tuple[int, bool, str, str]) -> bool:
    """Does control never fall through? ``BRA.U UP0, …`` and ``BRA P0, …`` carry their condition among the operands."""
    _, predicate, _, rest = instruction
    return not predicate and not re.match(r"!?U?P[0-9]", rest)
