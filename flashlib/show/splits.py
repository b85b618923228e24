"""Pictures for decoding: which processors have a program, how a cache is cut, and who owns the pages of a pool."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .frame import canvas, settle
from .shade import shades
from .style import GREY, INK, LOOK, MASK_FACE, PAPER, SMALL, TEXT, styled

_SEQUENCES = ("Q", "K", "V", "O", "S", "P")


@styled
def processors(total: int, programs: Mapping[str, int], *, title: str, per_row: int = 44) -> Figure:
    """Draw a chip's processors once a way of sharing the work: filled where a program runs at the start.

    Parameters
    ----------
    total : processors of the chip
    programs : mapping what the way is called -> programs it launches
    title : what to see
    """
    rows = -(-total // per_row)
    fig, axes = canvas(
        len(programs), 1, title=title, size=(9.0, 0.7 + len(programs) * (0.5 + 0.2 * rows)), squeeze=False
    )
    for ax, (name, n) in zip(axes[:, 0], programs.items(), strict=True):
        for i in range(total):
            busy = i < n
            face = {"facecolor": shades("tiled")(0.75)} if busy else {"facecolor": PAPER}
            x, y = i % per_row, i // per_row
            ax.add_patch(Rectangle((x + 0.1, y + 0.1), 0.8, 0.8, edgecolor=INK if busy else GREY, linewidth=1, **face))
        waiting = f", {n - total} programs wait" if n > total else ""
        ax.set_title(f"{name}: {min(n, total)} of {total} busy{waiting}", loc="left", fontsize=TEXT)
        ax.set_xlim(0, per_row)
        ax.set_ylim(rows, 0)
        ax.set_aspect("equal")
        ax.set_axis_off()
    settle(fig)
    return fig


@styled
def cut(lengths: Sequence[int], room: int, splits: Sequence[tuple[int, int]], *, title: str) -> Figure:
    """Draw a cache of several sequences, cut into splits: how many keys each part of each sequence holds.

    Parameters
    ----------
    lengths : keys that each sequence holds
    room : keys that the cache has room for
    splits : first key and end of each part
    title : what to see
    """
    fig, ax = canvas(title=title, size=(9.0, 1.6 + 0.55 * len(lengths)))
    k = LOOK["K"]
    for b, n in enumerate(lengths):
        ax.add_patch(
            Rectangle((0, b + 0.12), room, 0.76, facecolor=MASK_FACE, edgecolor=GREY, hatch="////", linewidth=1)
        )
        ax.add_patch(Rectangle((0, b + 0.12), n, 0.76, facecolor=k.color, edgecolor=INK, linewidth=1))
        for j0, j1 in splits:
            held = max(0, min(n, j1) - j0)
            ax.text((j0 + j1) / 2, b + 0.5, str(held) if held else "empty", ha="center", va="center", fontsize=SMALL,
                    bbox={"boxstyle": "round,pad=0.2", "facecolor": PAPER, "edgecolor": "none"})  # fmt: skip
    for j0, _ in splits[1:]:
        ax.axvline(j0, color=INK, linewidth=2.2)
    ax.set_xlim(0, room)
    ax.set_ylim(len(lengths), 0)
    ax.set_yticks([b + 0.5 for b in range(len(lengths))], [f"sequence {b}" for b in range(len(lengths))])
    ax.set_xlabel("place in the cache; in a part: the keys it holds; thick lines: where the cache is cut")
    ax.tick_params(axis="y", length=0)
    ax.grid(False)
    return fig


@styled
def pages(owned: Sequence[Sequence[int]], lengths: Sequence[int], page: int, pool: int, *, title: str) -> Figure:
    """Draw a pool of pages: whose each is, which of that sequence's it is, and how many keys it holds.

    Parameters
    ----------
    owned : for each sequence its pages, in order; lengths : keys it holds
    page : keys a page; pool : pages in all
    title : what to see
    """
    fig, ax = canvas(title=title, size=(9.0, 2.7))
    for p in range(pool):
        ax.add_patch(Rectangle((p + 0.06, 0), 0.88, page, facecolor=PAPER, edgecolor=GREY, linewidth=1.2))
    for b, (mine, n) in enumerate(zip(owned, lengths, strict=True)):
        look = LOOK[_SEQUENCES[b % len(_SEQUENCES)]]
        for c, p in enumerate(mine):
            held = min(page, n - c * page)
            face = shades(_SEQUENCES[b % len(_SEQUENCES)])(0.35)
            ax.add_patch(
                Rectangle((p + 0.06, 0), 0.88, held, facecolor=face, edgecolor=INK, hatch=look.hatch, linewidth=1.2)
            )
            ax.text(p + 0.5, page / 2, f"{b}\n#{c}", ha="center", va="center", fontsize=SMALL,
                    bbox={"boxstyle": "round,pad=0.15", "facecolor": PAPER, "edgecolor": "none"})  # fmt: skip
    ax.set_xlim(0, pool)
    ax.set_ylim(0, page)
    ax.set_xticks([p + 0.5 for p in range(pool)], [str(p) for p in range(pool)])
    ax.set_yticks([0, page])
    ax.set_xlabel("page of the pool; inside: whose it is, and which of its pages")
    ax.set_ylabel("keys held")
    ax.tick_params(length=0)
    ax.grid(False)
    return fig
