"""The player: what it shows of a run is what the run did, and a wrong run is found out at its first wrong tile."""

import html
import math
import os
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("TRITON_INTERPRET", "1")

import matplotlib
import numpy as np
import pytest
import torch

matplotlib.use("agg")

from matplotlib.backends.backend_agg import FigureCanvasAgg

import flashlib
from flashlib.algorithms import masks
from flashlib.grading.inputs import draw
from flashlib.instruments import interpreter, pipelines
from flashlib.instruments.faults import Site
from flashlib.instruments.traffic import MemoryMachine
from flashlib.show import bundle as bundles
from flashlib.show import explorer, inches, player, player_figure, player_strip, walk
from flashlib.show.playing import Playing
from flashlib.show.recording import recording
from flashlib.show.row_state import Problem, number
from flashlib.show.step_titles import heading, headline

HERE = Path(__file__)
TOY = flashlib.toy()
TIGHT = pipelines.flash_sram(2, 2, d=4, itemsize=8)


def one_head(Sq, Sk, library="numpy", seed=0, **options):
    return [t[0, 0] for t in draw(seed, B=1, Hq=1, Hkv=1, Sq=Sq, Sk=Sk, library=library, **options)[:3]]


def program(m, q, k, v, Br, Bc, *, fault="", causal=False):
    """Attention as a learner writes it for the machine, with a fault that can be switched on."""
    Q, K, V, O = m.hbm("Q", q), m.hbm("K", k), m.hbm("V", v), m.hbm_empty("O", (len(q), v.shape[1]), q.dtype)
    scale = 1.0 if fault == "no scale" else q.shape[1] ** -0.5
    spans = masks.spans(len(k), Bc)
    spans = spans[:-1] if fault == "no tail" else spans + spans[-1:] if fault == "tail twice" else spans
    for i0, i1 in masks.spans(len(q), Br):
        with m.kernel("mine"):
            q_i = m.load(Q, slice(i0, i1))
            columns = {"m": -np.inf, "l": 0.0}
            top, total = [m.put(name, np.full((i1 - i0, 1), x, q.dtype)) for name, x in columns.items()]  # here: m
            acc = m.put("acc", np.zeros((i1 - i0, v.shape[1]), q.dtype))
            for j0, j1 in spans:
                k_j = m.load(K, slice(j0, j1))  # here: k
                s = m.put("S", scale * (q_i @ k_j.T))
                hidden = ~masks.visible(len(q), len(k), causal and fault != "no mask")[i0:i1, j0:j1]
                s = np.where(hidden, -np.inf, s).astype(q.dtype)
                new = np.maximum(top, s.max(1, keepdims=True))
                safe = np.where(new == -np.inf, 0, new)
                p, shrink = np.exp(s - safe), np.exp(top - safe)
                v_j = m.load(V, slice(j0, j1))
                total = m.put("l", (1 if fault == "l kept" else shrink) * total + p.sum(1, keepdims=True))
                acc = m.put("acc", (1 if fault == "acc kept" else shrink) * acc + p @ v_j)
                m.put("m", top if fault == "old m" else new)
                top = new
            o = acc if fault == "not divided" else acc / np.where(total == 0, 1, total)
            m.store(O, slice(i0, i1), o.astype(q.dtype))
    return O.array


def played(q, k, v, Br, Bc, row=0, *, causal=False, **options):
    m = MemoryMachine(math.inf, trace=True)
    program(m, q, k, v, Br, Bc, causal=causal, **options)
    return Playing(recording(m), Problem(q, k, v, causal=causal), row)


# --- the memory machine


def test_row_three_of_the_toy_is_shown_as_the_course_prints_it():
    m = MemoryMachine(TIGHT, trace=True)
    pipelines.flash(m, *TOY, block_q=2, block_k=2)
    playing = Playing(recording(m), Problem(*TOY), 3)
    assert playing.difference is None and playing.run.kept
    ends = [t.last for t in playing.run.tiles]
    assert len(ends) == 9
    for n, end in enumerate(ends):
        now, steps = walk.moment(*TOY, n), playing.run.steps
        assert steps[end].rows == (now.i0, now.i1) and steps[end].keys == (now.j0, now.j1)
        if now.i0 <= 3 < now.i1:
            state = playing.states[end]
            assert state.kept and state.seen == now.j1
            assert (state.m, state.l) == (now.m[1, 0], now.l[1, 0]) and np.array_equal(state.acc, now.acc[1])
    begins = next(n for n, state in enumerate(playing.states) if state)
    assert playing.step(begins).name == "acc" and playing.states[begins].l == 0, "the rows before are not row 3's"
    assert [number(playing.states[end].l) for end in ends[3:6]] == ["1.3679", "1.8711", "2.0562"]
    assert playing.states[ends[2]] is None and playing.states[ends[8]] is not None


def test_sram_and_bytes_are_the_machine_s_own():
    m = MemoryMachine(TIGHT, trace=True)
    pipelines.flash(m, *TOY, block_q=2, block_k=2)
    run, report = recording(m), m.report()
    assert run.total == report.total
    assert [sum(s.held.values()) for s in run.steps] == [e.sram for e in report.events]
    four = MemoryMachine(TIGHT)
    pipelines.four_steps(four, *TOY)
    playing = Playing(run, Problem(*TOY), 3)
    assert playing.naive == four.report().total and playing.naive_as == "four steps in the same SRAM"
    assert playing.step(len(run.steps) - 1).moved == report.total


def test_a_traced_step_knows_its_line_and_an_untraced_machine_says_so():
    playing = played(*TOY, 2, 2)
    number_ = next(i for i, text in enumerate(HERE.read_text().splitlines(), 1) if text.endswith("# here: k"))
    n = next(n for n, s in enumerate(playing.run.steps) if s.role == "K")
    assert playing.code(n) == f"program, line {number_}:  k_j = m.load(K, slice(j0, j1))  # here: k"
    put = next(n for n, s in enumerate(playing.run.steps) if s.name == "m")
    assert playing.code(put).startswith("program, line ") and playing.code(put).endswith("# here: m")
    m = MemoryMachine(math.inf)
    program(m, *TOY, 2, 2)
    plain = Playing(recording(m), Problem(*TOY), 3)
    assert plain.code(0) == "" and not plain.run.kept and "no numbers" in plain.verdict()
    state = plain.states[plain.run.tiles[4].last]
    assert not state.kept and number(state.l) == "1.8711" and "computed anew" in plain.numbers(40)[-1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_right_program_is_never_called_wrong(dtype, causal):
    for seed in range(4):
        for Sq, Sk, Br, Bc in ((6, 6, 2, 2), (37, 53, 16, 8), (53, 37, 5, 16), (1, 9, 1, 1), (20, 90, 64, 64)):
            x = one_head(Sq, Sk, seed=seed, dtype=dtype, offset=120.0 * (seed % 2))
            assert played(*x, Br, Bc, causal=causal).difference is None, (seed, Sq, Sk)


def test_torch_and_sixteen_bits():
    for dtype in ("float16", "bfloat16", "float32"):
        x = one_head(37, 53, library="torch", dtype=dtype)
        m = MemoryMachine(math.inf, trace=True)
        pipelines.flash(m, *x, block_q=16, block_k=16, causal=True)
        playing = Playing(recording(m), Problem(*x, causal=True), 20)
        assert playing.difference is None and playing.run.kept, dtype


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("acc kept", (0, 1)),  # the second tile of the first rows, where the maximum first rises
        ("l kept", (0, 1)),
        ("no scale", (0, 0)),
        ("old m", (0, 0)),  # o is right all the same, and the lse would be wrong
        ("tail twice", (0, 6)),
        ("no mask", (0, 1)),
        ("no tail", None),
        ("not divided", None),
    ],
)
def test_a_fault_is_found_at_its_first_tile(fault, where):
    causal = fault == "no mask"
    playing = played(*one_head(24, 24), 4, 4, causal=causal, fault=fault)
    wrong = playing.difference
    assert wrong is not None
    if where is None:
        assert wrong.tile is None and playing.step(wrong.step).role == "O"
        assert ("has seen keys 20 to 23" in wrong.what) == (fault == "no tail")
    elif fault == "no mask":  # the diagonal tile of the first rows is the first that hides anything
        assert playing.run.tiles[wrong.tile][:2] == ((0, 4), (0, 4))
    else:
        assert playing.run.tiles[wrong.tile].rows == (0, 4) and wrong.tile == where[1]
    assert f"step {wrong.step}" in playing.verdict() and wrong.what[1:] in playing.verdict()


def test_programs_written_otherwise():
    q, k, v = one_head(12, 20)
    scale = q.shape[1] ** -0.5

    def keys_outside(m):  # the state of a row goes to HBM and comes back for every key tile
        Q, K, V, O = m.hbm("q_ptr", q), m.hbm("k_ptr", k), m.hbm("v_ptr", v), m.hbm_empty("o", v[:12].shape, q.dtype)
        state = {n: m.hbm(n, np.full((12, c), x, q.dtype)) for n, c, x in (("m", 1, -np.inf), ("l", 1, 0), ("a", 8, 0))}
        state["a"] = m.hbm("a", np.zeros((12, v.shape[1]), q.dtype))
        with m.kernel("outside in"):
            for j in (slice(0, 8), slice(8, 16), slice(16, 20)):
                k_j, v_j = m.load(K, j), m.load(V, j)
                for i in (slice(0, 4), slice(4, 8), slice(8, 12)):
                    q_i = m.load(Q, i)
                    top, total, acc = (m.load(state[n], i) for n in ("m", "l", "a"))
                    s = scale * q_i @ k_j.T
                    new = np.maximum(top, s.max(1, keepdims=True))
                    p, shrink = np.exp(s - new), np.exp(top - new)
                    for n, x in (("m", new), ("l", shrink * total + p.sum(1, keepdims=True)),
                                 ("a", shrink * acc + p @ v_j)):  # fmt: skip
                        m.store(state[n], i, m.put(n, x))
            for i in (slice(0, 4), slice(4, 8), slice(8, 12)):
                m.store(O, i, state["a"].array[i] / state["l"].array[i])

    def in_place(m):  # nothing is put again after the first time: the machine cannot see how the numbers change
        Q, K, V, O = m.hbm("Q", q), m.hbm("K", k), m.hbm("V", v), m.hbm_empty("O", v[:12].shape, q.dtype)
        with m.kernel("in place"):
            q_i, top = m.load(Q), m.put("m", np.full((12, 1), -np.inf, q.dtype))
            total, acc = m.put("l", np.zeros((12, 1), q.dtype)), m.put("acc", np.zeros((12, v.shape[1]), q.dtype))
            for j in (slice(0, 8), slice(8, 20)):
                s = scale * q_i @ m.load(K, j).T
                new = np.maximum(top, s.max(1, keepdims=True))
                total *= np.exp(top - new)
                acc *= np.exp(top - new)
                total += np.exp(s - new).sum(1, keepdims=True)
                acc += np.exp(s - new) @ m.load(V, j)
                top = new
            m.store(O, (), acc / total)

    for write, kept, tiles in ((keys_outside, True, 9), (in_place, False, 2)):
        m = MemoryMachine(math.inf, trace=True)
        write(m)
        run = recording(m, names={"a": "acc"})
        playing = Playing(run, Problem(q, k, v), 5)
        assert run.kept == kept and len(run.tiles) == tiles, write.__name__
        assert playing.difference is None, (write.__name__, playing.verdict())
        right = Problem(q, k, v).state(5, list(range(20)))
        assert math.isclose(playing.states[run.tiles[-1].last].l, right.l, rel_tol=1e-5)


def test_four_steps_are_played_and_judged_by_what_they_store():
    x = one_head(12, 20)
    m = MemoryMachine(math.inf, trace=True)
    pipelines.four_steps(m, *x, block=4)
    run = recording(m)
    assert Playing(run, Problem(*x), 3).difference is None
    wrong = Playing(run, Problem(*x, causal=True), 3).difference
    assert wrong is not None and wrong.row == 0
    assert {s.kernel for s in run.steps} == {"QKᵀ", "scale", "softmax", "PV"}


def test_nothing_recorded_and_rows_that_do_not_exist_are_errors():
    with pytest.raises(ValueError, match="nothing was recorded"):
        recording(MemoryMachine(math.inf))
    with pytest.raises(ValueError, match="rows 0 to 5"):
        played(*TOY, 2, 2, row=6)
    with pytest.raises(ValueError, match="one head"):
        Problem(*(x[None] for x in TOY))


def test_a_trace_holds_the_numbers_of_its_moment():
    for x in (np.zeros(2), torch.zeros(2)):
        m = MemoryMachine(math.inf, trace=True)
        with m.kernel("in place"):
            m.put("l", x)
            x += 1
            m.put("l", x)
        assert [float(e.value[0]) for e in m.report().events] == [0, 1]


def test_the_learner_s_line_is_preferred_to_a_helper_of_the_package():
    playing, helper = played(*TOY, 2, 2), triton_tile_path()
    kernels = HERE.with_name("kernels_player.py")
    step = playing.step(0)
    step.site = Site(helper, 5, "load_tile", (("attend", 17), ("forward", 3)), (str(kernels), str(HERE)))
    assert playing.code(0) == f"attend, line 17:  {kernels.read_text().splitlines()[16].strip()}"
    step.site = Site(helper, 5, "load_tile", (("_attend_tile", 2), ("kernel", 3)), (player.__file__, player.__file__))
    assert playing.code(0).startswith("_attend_tile, line 2:")  # the package's own kernel: its file, not the helper's


def triton_tile_path():
    return str(Path(flashlib.__file__).parent / "algorithms" / "triton_tile.py")


def test_tracing_is_off_unless_asked_for():
    m = MemoryMachine(math.inf)
    program(m, *TOY, 2, 2)
    assert all(e.value is None and e.site is None for e in m.report().events)


def test_the_row_is_told_before_within_and_after_a_tile():
    playing = played(*TOY, 2, 2, row=3)
    tile, right = playing.run.tiles[4], playing.problem.state(3, [0, 1, 2, 3])
    steps = {playing.step(n).name: n for n in range(tile.first, tile.last + 1)}
    assert list(steps) == ["K", "S", "V", "l", "acc", "m"]
    for name, n in steps.items():
        said = playing.numbers(n)[0].removeprefix("row 3 ")
        where = {"l": "halfway into this tile (2 keys before it)", "acc": "halfway into this tile (2 keys before it)"}
        where["m"] = "after this tile (4 keys in all)"
        assert said.startswith(where.get(name, "before this tile (2 keys so far)")), (name, said)
        assert ("o = acc / l = (" in playing.numbers(n)[2]) == (name not in ("l", "acc"))
    assert f"m = {number(right.m)}   l = {number(right.l)}" in playing.numbers(tile.last)[0]
    assert "keys 2 to 3 are absorbed" in playing.title(tile.last)
    stored = next(n for n, s in enumerate(playing.run.steps) if n > tile.last and s.role == "O")
    assert playing.numbers(stored)[0].startswith("row 3 after 6 keys:")


@pytest.mark.parametrize(
    ("fault", "wrong", "does"),
    [
        ("old m", {"m"}, "makes row 0 wrong"),
        ("l kept", {"l"}, "makes row 0 wrong"),
        ("acc kept", {"o"}, "makes row 0 wrong"),
        ("not divided", set(), "what is stored of row 0 is wrong"),
    ],
)
def test_wrong_numbers_are_marked_from_their_step_on_with_the_right_ones_beside(fault, wrong, does):
    playing = played(*TOY, 2, 2, fault=fault)
    place = playing.difference
    assert does in playing.title(place.step) and f"Step {place.step}: " in headline(playing)
    for n in (0, place.step - 1, place.step, place.step + 1, len(playing.run.steps) - 1):
        fig = player_figure.draw(playing, n)
        seals = [t for t in fig.axes[0].texts if t.get_text() == "≠"]
        assert len(seals) == (place.tile is not None and n >= place.step), (fault, n)
        marked = [p for line in playing.lines(n) for p in line if p.wrong]
        assert n >= place.step or not marked
        bold = {t.get_text() for t in fig.texts if t.get_fontweight() == "bold" and t.get_color() == inches.WRONG}
        assert bold == {p.text for p in marked}
    tile, state = playing.run.tiles[playing.step(place.step).tile or 0], playing.states[place.step]
    right = playing.problem.state(0, list(range(tile.keys[1])))
    said = " ".join(playing.numbers(place.step))
    assert (f"m = {number(state.m)} ≠ {number(right.m)} (right)" in said) == ("m" in wrong)
    assert (f"l = {number(state.l)} ≠ {number(right.l)} (right)" in said) == ("l" in wrong)
    o = "≠ (" + ", ".join(number(x) for x in right.o) + ") (right)"
    assert (o in said) == ("o" in wrong or "l" in wrong)


# --- Triton


def triton_run(x, kernel=None, *, keep=("m", "l", "acc"), Hq=1, causal=False, **options):
    q, k, v = x
    with interpreter.watch(trace=True, keep=keep) as w:
        if kernel is None:
            o = flashlib.attention(q, k, v, causal=causal, impl="triton")
        else:
            o = torch.empty_like(q)
            Sq, Sk, D = q.shape[2], k.shape[2], q.shape[3]
            strides = [t.stride() for t in (q, k, v, o)]
            grid = (-(-Sq // 16),)
            kernel[grid](q, k, v, o, *strides, Sq, Sk, D**-0.5, D, 32, 16, 16, **options)
    return w, o


def batch(dtype="float32", Hq=1, Hkv=1, Sq=37, Sk=53, **options):
    return list(draw(1, B=1, Hq=Hq, Hkv=Hkv, Sq=Sq, Sk=Sk, dtype=dtype, library="torch", **options)[:3])


@pytest.fixture
def kernels():
    pytest.importorskip("triton", reason="triton is not installed (it runs on Linux only)")
    if not interpreter.interpreting():
        pytest.skip("kernels are compiled here: the player reads the interpreter's trace")
    import kernels_player

    return kernels_player


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_package_s_kernel_is_followed_by_its_own_numbers(kernels, dtype, causal):
    x = batch(dtype, Hq=2)
    w, o = triton_run(x, causal=causal)
    q, k, v = x[0][0, 1], x[1][0, 0], x[2][0, 0]
    run, problem = recording(w, head=(0, 1)), Problem(q, k, v, causal=causal)
    playing = Playing(run, problem, 20, o=o[0, 1], log2=True)
    assert run.kept and playing.difference is None, playing.verdict()
    block = [max(t[axis][1] - t[axis][0] for t in run.tiles) for axis in (0, 1)]
    kinds = [kind for *_, kind in masks.tiles(37, 53, *block, causal)]
    assert len(run.tiles) == len(kinds) - kinds.count("skip")
    for tile in run.tiles:
        if tile.rows[0] <= 20 < tile.rows[1]:
            state, right = playing.states[tile.last], problem.state(20, list(range(tile.keys[1])))
            assert state.kept and state.seen == right.seen
            assert math.isclose(state.l, right.l, rel_tol=1e-4) and math.isclose(state.m, right.m, rel_tol=1e-5)
    assert 2 * run.total == w.report().total  # two heads alike
    assert playing.code(run.tiles[0].first).startswith("_attend_tile, line ")


def test_a_head_of_a_batch_is_played_with_the_keys_of_its_group(kernels, sent):
    x = batch(Hq=4, Hkv=2)
    w, o = triton_run(x)
    playing = player.play(w, *x, row=20, head=(0, 3), o=o, log2=True)
    assert playing.difference is None and "[0, 3, " in playing.title(0)
    assert Playing(playing.run, Problem(x[0][0, 3], x[1][0, 0], x[2][0, 0]), 20, log2=True).difference is not None


def test_a_kernel_s_line_is_the_one_that_calls_the_helper(kernels):
    w, _ = triton_run(batch(), kernels.forward, RESCALE=True, TAIL=True)
    playing = Playing(recording(w), Problem(*(t[0, 0] for t in batch())), 3)
    lines = Path(kernels.__file__).read_text().splitlines()
    for role in "qko":
        at = next(i for i, text in enumerate(lines, 1) if text.endswith(f"# here: {role}"))
        n = next(n for n, s in enumerate(playing.run.steps) if s.role == role.upper())
        assert playing.code(n) == f"forward, line {at}:  {lines[at - 1].strip()}"


def test_a_wrong_kernel_is_found_with_its_numbers_and_without(kernels):
    x = batch()
    problem = Problem(*(t[0, 0] for t in x))
    for keep in (("m", "l", "acc"), ()):
        good, o = triton_run(x, kernels.forward, keep=keep, RESCALE=True, TAIL=True)
        assert Playing(recording(good), problem, 3, o=o[0, 0]).difference is None
        w, o = triton_run(x, kernels.forward, keep=keep, RESCALE=False, TAIL=True)
        playing = Playing(recording(w), problem, 3, o=o[0, 0])
        wrong = playing.difference
        assert playing.run.kept == bool(keep) and wrong is not None
        assert wrong.tile == (1 if keep else None)  # the second tile; without the numbers, the first store
        w, o = triton_run(x, kernels.forward, keep=keep, RESCALE=True, TAIL=False)
        wrong = Playing(recording(w), problem, 3, o=o[0, 0]).difference
        assert wrong is not None and wrong.tile is None and "keys 48 to 52" in wrong.what


# --- what is shown


@pytest.fixture
def sent(monkeypatch):
    """What reaches the front end of a kernel."""
    import IPython.display

    out = []
    monkeypatch.delenv("FLASHLIB_STATIC", raising=False)
    for module in (bundles, explorer, player):
        monkeypatch.setattr(module, "shell", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(IPython.display, "display", lambda data, raw, metadata: out.append(data))
    return out


def widget_of(data):
    import ipywidgets

    instances = getattr(ipywidgets.Widget, "_instances", None) or getattr(ipywidgets.widgets.widget, "_instances", None)
    return (instances or ipywidgets.Widget.widgets)[data[explorer.WIDGET]["model_id"]]


def shown_on(machine=None, **options):
    m = MemoryMachine(TIGHT, trace=True)
    program(m, *TOY, 2, 2, **options)
    return player.play(m, *TOY, row=3)


def test_the_widget_steps_scrubs_and_follows_another_row(sent):
    playing = shown_on()
    bar, picture = widget_of(sent[0]).children
    clock, step, row, back, on, tile, transfer = bar.children
    assert (clock.min, clock.max, step.max) == (0, len(playing.run.steps) - 1, len(playing.run.steps) - 1)
    for n in (0, playing.run.tiles[4].last, step.max):
        step.value = n
        for line in playing.numbers(n):
            assert line in picture.value
        assert playing.title(n) in picture.value
    step.value = playing.run.tiles[3].last
    tile.click()
    assert step.value == playing.run.tiles[4].last and "l = 1.8711" in picture.value
    on.click()
    assert step.value == playing.run.tiles[5].first
    back.click()
    assert step.value == playing.run.tiles[4].last
    transfer.click()
    assert playing.step(step.value).bytes
    row.value = 0
    assert "row 0 " in picture.value and "row 3 " not in picture.value
    step.value = step.max
    for button in (on, tile, transfer):
        button.click()
        assert step.value == step.max


def test_the_button_goes_to_the_first_difference(sent):
    playing = shown_on(fault="acc kept")
    bar, picture = widget_of(sent[0]).children
    assert bar.children[-1].description == "first difference"
    bar.children[-1].click()
    assert bar.children[1].value == playing.difference.step
    assert playing.verdict() in picture.value


def test_the_still_picture_says_the_same_and_needs_no_widget(sent, monkeypatch):
    monkeypatch.setenv("FLASHLIB_STATIC", "1")
    playing = shown_on()
    [data] = sent
    assert explorer.WIDGET not in data and {"text/html", "image/png", "text/plain"} == set(data)
    for n in playing.moments():
        for line in player_strip.row_lines(playing, n):
            assert " ".join(player_strip.text(line).split()) in data["text/plain"]
        assert heading(playing, n) in data["text/plain"]
    assert headline(playing) == "One tile at a time: row 3 keeps only m, l and acc"
    assert headline(playing) in data["text/plain"]
    assert "l = 1.3679" in data["text/plain"] and "l = 2.0562" in data["text/plain"]
    assert 'alt="' in data["text/html"] and html.escape(playing.verdict()) in data["text/html"]


def test_an_error_in_a_picture_is_shown_in_its_place(sent, monkeypatch):
    shown_on()
    bar, picture = widget_of(sent[0]).children
    monkeypatch.setattr(player, "draw", lambda *_: 1 / 0)
    bar.children[1].value = 1
    assert "ZeroDivisionError" in picture.value and 'role="alert"' in picture.value


@pytest.mark.parametrize("fault", ["", "acc kept"])
def test_pictures_hold_all_their_text(fault):
    for playing in (
        played(*TOY, 2, 2, row=3, fault=fault),
        played(*one_head(37, 53), 16, 16, row=20, causal=True, fault=fault),
    ):
        moments = playing.moments()
        for fig in (player_figure.draw(playing, moments[1]), player_strip.strip(playing, moments)):
            renderer = FigureCanvasAgg(fig).get_renderer()
            fig.draw(renderer)
            ticks = [t for ax in fig.axes for t in (*ax.get_xticklabels(), *ax.get_yticklabels()) if ax.axison]
            for text in [*fig.texts, *(t for ax in fig.axes for t in ax.texts), *ticks]:
                box = text.get_window_extent(renderer)
                inside = (
                    box.x0 >= -1 and box.x1 <= fig.bbox.width + 1 and box.y0 >= -1 and box.y1 <= fig.bbox.height + 1
                )
                assert inside or not text.get_text(), (text.get_text(), box)


def test_the_tile_under_work_shows_its_scores():
    playing = played(*TOY, 2, 2, row=3)
    fig = player_figure.draw(playing, playing.run.tiles[5].last)
    texts = [t.get_text() for t in fig.axes[0].texts if t.get_text() != "gone"]
    assert texts == ["1.5", "1.5", "3", "2"]
