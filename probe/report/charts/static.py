"""Charts as SVG and PNG files, made without a browser."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probe.errors import UserError
from probe.report.charts.base import Chart
from probe.system.atomic import write_atomic


def engine() -> Any:
    """The module that draws charts without a browser."""
    try:
        import vl_convert
    except ImportError as error:
        raise UserError("charts need vl-convert: pip install 'mr2-probe[plots]'") from error
    return vl_convert


def save(charts: Iterable[Chart], folder: Path) -> list[Path]:
    """Write `<name>.svg` and `<name>.png` (twice the size, for print) of each chart; return the paths."""
    vl_convert, written = engine(), []
    for chart in charts:
        svg = vl_convert.vegalite_to_svg(chart.whole())
        for name, content in (
            (f"{chart.name}.svg", svg),
            (f"{chart.name}.png", vl_convert.svg_to_png(svg, scale=2)),
        ):
            write_atomic(folder / name, content)
            written.append(folder / name)
    return written
