"""A recorded run as steps and tiles, whoever recorded it: the memory machine or a watched Triton kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Span = tuple[int, int]
TENSORS = ("Q", "K", "V", "O", "S", "P", "LSE")
SLOTS = {"m": "m", "l": "l", "acc": "acc", "o": "acc"}  # names of a row's state in SRAM or in a kernel


@dataclass
class Step:
    """One event of a run: what moved, and how things stand after it (and after the arithmetic that follows it)."""

    kernel: str
    op: str  # "load" | "store" | "put" | "drop" | "atomic"
    name: str  # a tensor of HBM; for put and drop, a slot of SRAM
    role: str  # "Q", "K", …, if it is one of them
    part: str  # "[2:4, 0:4]"
    bytes: int  # that crossed between HBM and the chip
    moved: int  # so far, with this step
    rows: Span | None  # the tile under work, or none
    keys: Span | None
    tile: int | None  # its number in the run
    held: dict[str, int]  # on chip after this step: bytes by slot
    site: Any  # the program's line: `instruments.faults.Site`, or None
    state: dict[str, Any] = field(default_factory=dict)  # m, l, acc of `rows`, as the program holds them after this
    value: Any = None  # what was stored
    slot: str = ""  # of SRAM, that a load or put filled


class Tile(NamedTuple):
    """One tile's turn: rows and keys, and the numbers of its first and last step."""

    rows: Span
    keys: Span
    first: int
    last: int
    kept: bool  # m, l and acc were all put in this turn, so that the program's own numbers after it are known


@dataclass
class Recording:
    """The steps of a run in order. `sram_bytes` is None where the recorder does not know what lies on chip."""

    steps: list[Step]
    tiles: list[Tile]
    sram_bytes: float | None
    kept: bool  # whether the program's own m, l and acc are known

    @property
    def total(self) -> int:
        """Bytes that crossed between HBM and the chip."""
        return self.steps[-1].moved if self.steps else 0


def recording(run: Any, *, head: tuple[int, int] = (0, 0), names: Mapping[str, str] | None = None) -> Recording:
    """Read a run: a `MemoryMachine` or its `report()`, or a `Watch` that traced.

    Parameters
    ----------
    run : what recorded; with ``trace=True`` it also has lines of code and values.
    head : (batch, query head): of tensors with four dimensions, only the programs that load this head's Q.
    names : the course's name for each of the program's: ``{"queries": "Q", "top": "m"}``. q, Q, q_ptr need none.

    Raises
    ------
    ValueError
        Nothing was recorded.
    """
    watched = hasattr(run, "trace")
    events = _programs(run.trace, head, names) if watched else _machine(run)
    steps, tiles = _walk(list(events), names or {})
    if not steps:
        raise ValueError("nothing was recorded: run a kernel with MemoryMachine(..., trace=True) or watch(trace=True)")
    report = None if watched else run.report() if hasattr(run, "report") else run
    if watched:  # what a kernel's variables are after a step shows only when it moves again
        for now, then in zip(steps, steps[1:], strict=False):
            now.state = then.state if then.kernel == now.kernel else {}
        steps[-1].state = {}
        tiles = [tile._replace(kept=len(steps[tile.last].state) == 3) for tile in tiles]
    kept = any(tile.kept for tile in tiles)
    for step in steps:
        step.state = step.state if kept else {}
    return Recording(steps, tiles, report.sram_bytes if report else None, kept)


class _Event(NamedTuple):
    unit: str  # kernel, or kernel and program
    op: str
    name: str
    spans: tuple[tuple[int, int, int], ...]
    bytes: int
    slot: str
    value: Any
    site: Any
    sram: int | None
    state: dict[str, Any]


def _machine(run: Any) -> Iterator[_Event]:
    report = run.report() if hasattr(run, "report") else run
    for e in report.events:
        yield _Event(e.kernel, e.op, e.tensor, e.index, e.bytes, e.slot or e.tensor, e.value, e.site, e.sram, {})


def _programs(trace: Iterable[Any], head: tuple[int, int], names: Any) -> Iterator[_Event]:
    trace = list(trace)
    mine = None
    loads = [e for e in trace if e.op == "load" and _role(e.tensor, names or {}) == "Q" and len(e.index) == 4]
    if loads:
        wanted = tuple((n, n + 1, 1) for n in head)
        mine = {(e.launch, e.program) for e in loads if e.index[:2] == wanted}
    for e in trace:
        if mine is None or (e.launch, e.program) in mine:
            unit = f"{e.kernel}, program {e.program[0]}"
            yield _Event(unit, e.op, e.tensor, e.index, e.bytes, e.tensor, None, e.site, None, e.state or {})


def _role(name: str, names: Mapping[str, str]) -> str:
    if name in names:
        return names[name]
    short = name.upper().removesuffix("_PTR").removesuffix("PTR")
    return short if short in TENSORS else ""


def _walk(events: list[_Event], names: Mapping[str, str]) -> tuple[list[Step], list[Tile]]:
    steps, tiles = list[Step](), list[Tile]()
    count = {r: sum(e.op == "load" and _role(e.name, names) == r for e in events) for r in "QK"}
    q_outside = count["Q"] <= count["K"]  # which loop is outside: its tile stays when the other one changes
    unit, held, moved, state = None, dict[str, int](), 0, dict[str, Any]()
    rows: Span | None = None
    keys: Span | None = None
    loaded, put, begun, tile = set[str](), set[str](), False, None
    for e in events:
        role = _role(e.name, names)
        if e.unit != unit or (e.sram is not None and _after(held, e) != e.sram):  # SRAM was emptied: a new kernel
            unit, held, state, rows, keys, loaded, tile = e.unit, {}, {}, None, None, set(), None
        here = _spans(role, e.spans)
        before: Span | None = rows
        if e.op == "load" and role == "Q":
            rows, begun = here[0], False
            keys, tile = (None, None) if q_outside else (keys, tile)
        elif e.op == "load" and role in ("K", "V"):
            if here[0] != keys or role in loaded:
                keys, begun, loaded = here[0], False, set()
                rows = rows if q_outside else None
            loaded.add(role)
        elif role in ("S", "P") and here[0] is not None and (rows, keys) != here:
            (rows, keys), begun, loaded = here, False, set()
        elif e.op == "store" and role in ("O", "LSE"):
            tile = None  # a row that is stored has absorbed its tile
            rows, keys = (here[0] or rows, None) if q_outside else (rows, keys)
        if keys is None or rows is None:
            tile = None
        elif not begun:
            begun, tile = True, len(tiles)
            tiles.append(Tile(rows, keys, len(steps), len(steps), False))
            put = set()
        crossed = e.bytes if e.op in ("load", "store", "atomic") else 0
        moved += crossed
        if e.op in ("load", "put"):
            held = held | {e.slot: e.bytes}
        elif e.op == "drop":
            held = {k: n for k, n in held.items() if k != e.slot}
        known = {names.get(e.slot, e.slot): e.value} if e.op in ("load", "put") and e.value is not None else {}
        known |= {names.get(name, name): value for name, value in e.state.items()}
        known = {SLOTS[name]: value for name, value in known.items() if name in SLOTS}
        state = (state if rows == before else {}) | known
        put |= set(known)
        if tile is not None:
            tiles[tile] = tiles[tile]._replace(last=len(steps), kept=len(put) == 3)
        part = "[" + ", ".join(f"{a}:{b}" if b - a > 1 else str(a) for a, b, _ in e.spans) + "]" if e.spans else ""
        stored = e.value if e.op == "store" else None
        filled = e.slot if e.op in ("load", "put") else ""
        steps.append(Step(e.unit, e.op, e.name, role, part, crossed, moved, rows, keys, tile, held, e.site, state,
                          stored, filled))  # fmt: skip
    return steps, tiles


def _after(held: dict[str, int], e: _Event) -> int:
    """What SRAM holds after an event, in bytes, if it is still what it was."""
    rest = sum(n for slot, n in held.items() if slot != e.slot or e.op == "store")
    return rest + (e.bytes if e.op in ("load", "put") else 0)


def _spans(role: str, index: tuple[tuple[int, int, int], ...]) -> tuple[Span | None, Span | None]:
    """Rows, and for S and P keys, of a part of a tensor; leading dimensions are batch and head."""
    if not index or not role:
        return None, None
    spans = [(a, b) for a, b, _ in index]
    if role == "LSE":
        return spans[-1], None
    if len(spans) < 2:
        return None, None
    return spans[-2], spans[-1] if role in ("S", "P") else None
