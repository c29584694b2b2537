"""Pictures of what was measured, for the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
#: Events a second by the number of clients.
Line = Mapping[int, float]
_SHARES = [1 - 10 ** (-step / 20) for step in range(81)]  # 0 to 0.9999, in ever smaller steps


def histogram(name: str, title: str, samples: Mapping[str, Sequence[float]]) -> Path:
    """The share of events (down to 1 of 10,000) that took longer than so many milliseconds."""
    import numpy
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for label, milliseconds in samples.items():
        axes.plot(
            numpy.quantile(milliseconds, _SHARES), [1 - each for each in _SHARES], label=label
        )
    axes.set(title=title, xlabel="milliseconds", ylabel="share that took longer", yscale="log")
    axes.set_xscale("log")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    return _saved(figure, name)


def by_clients(name: str, title: str, panels: Mapping[str, Mapping[str, Line]]) -> Path:
    """A panel for each kind of work: events a second by the number of clients, line by line."""
    from matplotlib.figure import Figure

    columns = 3
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4 * columns, 3 * rows), layout="constrained")
    figure.suptitle(title)
    for place, (kind, lines) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, place)
        for label, line in lines.items():
            axes.plot(list(line), list(line.values()), marker="o", label=label)
        counts = sorted({count for line in lines.values() for count in line})
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set(title=kind, xlabel="clients", ylabel="events/s", yscale="log")
        axes.grid(visible=True, which="both", alpha=0.3)
        axes.legend()
    return _saved(figure, name)


def _saved(figure: object, name: str) -> Path:
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = IMAGES / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})  # type: ignore[attr-defined]
    return path
