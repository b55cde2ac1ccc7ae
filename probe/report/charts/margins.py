"""Margins as charts: of the logits on the test split, and those that MR² sets."""

from __future__ import annotations

from collections.abc import Callable

from probe.report.charts.base import Chart, framed, quantity, series
from probe.report.charts.shapes import View, against_accuracy, along_classes, boxes, distribution
from probe.report.text.format import coefficient

Panel = Callable[[View], Chart | None]
FOLLOWED = 8  # classes whose margins are shown over training
MEANT = "Margins follow the spread (or size) of a class's features, and are meant to be larger for hard ones."


def _of_logits(shape: Callable[..., Chart], **about: str) -> Panel:
    """The logit margins of every method and group, in one of the shapes of a distribution."""

    def panel(view: View) -> Chart | None:
        tables = view.by_method("logit_margin_quantiles")
        return shape(tables, "logit margin", view.groups, **about) if tables else None

    return panel


logit_margins = _of_logits(
    boxes,
    name="logit-margins",
    title="Logit margins",
    note="The logit of the true class minus the best other one. Box: the middle 50 %; line: the middle 90 %.",
)
logit_margin_cdf = _of_logits(
    distribution,
    name="logit-margin-cdf",
    title="Logit margins, cumulative",
    note="The height at 0 is the error rate of the group. The further right a curve, the safer.",
)


def margins(view: View) -> Chart | None:
    """The margin of each class against its accuracy: on held-out training images, where that is known."""
    found = view.result.get("margins") or {}
    if not found.get("by_class"):
        return None
    of = {row["name"]: row for row in found["by_class"]}
    names = list(view.block.get("classes") or view.rows)
    held_out = [of[name].get("held_out_accuracy") for name in names]
    known = all(accuracy is not None for accuracy in held_out)
    return against_accuracy(
        view,
        [float(f"{of[name]['gamma']:.5g}") for name in names],
        "margin γ",
        held_out if known else None,
        name="margins",
        title="MR² margins against accuracy",
        note=MEANT
        + (
            f" Rank correlation with difficulty: {coefficient(found['rank_correlation'])}."
            if found.get("rank_correlation") is not None
            else ""
        ),
    )


def margin_history(view: View) -> Chart | None:
    """Margins over training, of the classes whose final margins are the smallest and the largest."""
    history = (view.result.get("margins") or {}).get("history")
    if not history:
        return None
    final = {row["name"]: row["gamma"] for row in view.result["margins"]["by_class"]}
    ordered = sorted(final, key=lambda name: final[name])
    followed = list(dict.fromkeys(ordered[: FOLLOWED // 2] + ordered[-FOLLOWED // 2 :]))
    where = {name: k for k, name in enumerate(final)}
    columns = {"step": "step", "class": "class", "value": "margin γ"}
    rows = [(point["step"], name, point["gamma"][where[name]]) for point in history for name in followed]
    return Chart(
        "margin-history",
        "MR² margins over training",
        "The classes with the smallest and the largest final margins; a class has margin 1 until its first "
        "image is seen.",
        columns,
        rows,
        framed(
            "line",
            columns,
            x=quantity("step", "training step", nice=False),
            y=quantity("value", "margin γ"),
            color=series("class", followed),
        ),
    )


def complexity(view: View) -> Chart | None:
    """Each class's term of Theorem 1, with MR²'s margins and with equal ones."""
    tables = view.block.get("complexity")
    if not tables:
        return None
    return along_classes(
        view,
        {"MR² margins": tables["with_margins"], "equal margins": tables["equal_margins"]},
        "term of the bound",
        name="complexity",
        title="Theorem 1: contribution of each class to the bound",
        note="Second moment of the class's features divided by its squared margin. MR² minimises the sum.",
    )
