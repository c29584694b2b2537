"""Pictures of what was measured, for the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
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


def _saved(figure: object, name: str) -> Path:
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = IMAGES / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})  # type: ignore[attr-defined]
    return path
