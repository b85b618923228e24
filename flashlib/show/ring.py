"""Pictures for ring attention: who holds which keys when, and how much each rank has to do."""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .frame import canvas
from .shade import shades
from .style import GREY, INK, LOOK, PAPER, SMALL, TEXT, styled


@styled
def turns(world: int, held: Callable[[int, int], str], *, title: str) -> Figure:
    """Draw the steps of a ring, one below the other: which keys lie at each rank, with arrows to where they go next.

    Parameters
    ----------
    world : number of ranks
    held : (rank, step) -> what stands in the box
    title : what to see
    """
    fig, ax = canvas(title=title, size=(9.0, 1.2 + 0.95 * world))
    k = LOOK["K"]
    for t in range(world):
        for rank in range(world):
            home = t == 0
            ax.add_patch(
                Rectangle((rank + 0.12, t), 0.76, 0.52, facecolor=shades("K")(0.45 if home else 0.15),
                          edgecolor=INK, linewidth=2.2 if home else 1.2, hatch=k.hatch if home else "")
            )  # fmt: skip
            ax.text(rank + 0.5, t + 0.26, held(rank, t), ha="center", va="center", fontsize=TEXT,
                    bbox={"boxstyle": "round,pad=0.15", "facecolor": PAPER, "edgecolor": "none"})  # fmt: skip
            if t < world - 1 and rank < world - 1:
                ax.annotate("", (rank + 1.5, t + 0.97), (rank + 0.5, t + 0.55),
                            arrowprops={"arrowstyle": "->", "color": INK, "linewidth": 1.6})  # fmt: skip
        if t < world - 1:  # the last rank hands on to the first, around the outside
            ax.annotate("", (world + 0.12, t + 0.76), (world - 0.5, t + 0.55),
                        arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 1.6})  # fmt: skip
            ax.annotate("", (0.5, t + 0.97), (-0.12, t + 0.76),
                        arrowprops={"arrowstyle": "->", "color": GREY, "linewidth": 1.6})  # fmt: skip
    ax.set_xlim(-0.15, world + 0.15)
    ax.set_ylim(world - 0.4, -0.1)
    ax.set_xticks([r + 0.5 for r in range(world)], [f"rank {r}\nits queries stay" for r in range(world)])
    ax.xaxis.tick_top()
    ax.set_yticks([t + 0.26 for t in range(world)], [f"step {t}" for t in range(world)])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.grid(False)
    return fig


@styled
def work(layouts: Mapping[str, Sequence[Sequence[float]]], *, title: str) -> Figure:
    """Draw for each layout what every rank does in every step, as bars; a step lasts as long as its tallest bar.

    Parameters
    ----------
    layouts : mapping name -> work[rank][step]
    title : what to see
    """
    top = max(w for rows in layouts.values() for row in rows for w in row)
    size = (9.0, 1.0 + 2.3 * len(layouts))
    fig, axes = canvas(len(layouts), 1, title=title, size=size, squeeze=False)
    for ax, (name, rows) in zip(axes[:, 0], layouts.items(), strict=True):
        world, steps = len(rows), len(rows[0])
        for t in range(steps):
            slowest = max(row[t] for row in rows)
            ax.text((t + 0.5) * (world + 1) - 1, 1.12 * top, f"step {t}", ha="center", fontsize=SMALL,
                    bbox={"boxstyle": "round,pad=0.15", "facecolor": PAPER, "edgecolor": "none"})  # fmt: skip
            for r, row in enumerate(rows):
                x = t * (world + 1) + r
                ax.bar(x, row[t], 0.8, color=LOOK["tiled"].color, edgecolor=INK)
                if slowest > row[t]:  # it waits for the slowest
                    ax.bar(x, slowest - row[t], 0.8, bottom=row[t], color=PAPER, edgecolor=GREY, hatch="////")
        ax.set_title(name, loc="left", fontsize=TEXT)
        ax.set_ylim(0, 1.3 * top)
        ax.set_ylabel("pairs")
        places = [t * (world + 1) + r for t in range(steps) for r in range(world)]
        ax.set_xticks(places, [str(r) for _ in range(steps) for r in range(world)], fontsize=SMALL)
        ax.tick_params(axis="x", length=0)
        ax.grid(False, axis="x")
    axes[-1, 0].set_xlabel("rank; a step lasts as long as its tallest bar; hatched: waiting")
    return fig
