"""What each diagnostic says, in one line from its numbers: shown beside its title while it is folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from probe.report.charts.curves import CLASSIFIERS
from probe.report.charts.shapes import LEVELS, View
from probe.report.text import certainty, format
from probe.report.text.format import coefficient, percent, plural, signed

Verdict = Callable[[View], str]
RELATED = 1.96  # standard errors of a rank correlation, 1 / sqrt(K - 1), from which it is more than chance
FEW_CLASSES = 5  # below which a rank correlation says nothing
EVEN = 0.1  # relative difference between groups below which they are called alike
CAUSES = {
    "representation": "representation, not classifier: k-NN falls as much",
    "classifier": "classifier, not representation: k-NN falls much less",
    "both": "both: k-NN falls less than the head, but it falls",
    certainty.UNKNOWN: "cannot tell: rare classes have few neighbours, so k-NN falls too",
    None: "no fall from easy to hard classes to explain",
}


def of_panel(name: str, view: View) -> str:
    """The line of a panel; empty for one that this table does not know."""
    return VERDICTS[name](view) if name in VERDICTS else ""


def _cause(view: View) -> str:
    fall = certainty.falls(view.result)
    told = ", ".join(f"{CLASSIFIERS[name]} {signed(-drop)}" for name, drop in fall.items())
    return f"{CAUSES[certainty.cause(view.result)]} ({told} points)" if told else ""


def _by_group(view: View, values: Sequence[float | None]) -> dict[str, float]:
    """The mean over the classes of each group."""
    found: dict[str, list[float]] = {}
    for _, k, row in view.order:
        value = values[k]
        if value is not None:
            found.setdefault(row["group"], []).append(value)
    return {group: sum(v) / len(v) for group, v in found.items()}


def _ends(table: Mapping[str, float]) -> tuple[str, float, str, float] | None:
    """The easiest and the hardest group with their numbers; None where there is only one."""
    pairs = list(table.items())
    return (*pairs[0], *pairs[-1]) if len(pairs) > 1 else None


def _groups(what: str, of: Callable[[View], Mapping[str, float]]) -> Verdict:
    """`higher on hard (5.1) than on easy classes (2.3)`."""

    def verdict(view: View) -> str:
        ends = _ends(of(view))
        if ends is None:
            return ""
        easy, first, hard, last = ends
        numbers = f"({_short(last)} against {_short(first)})"
        if abs(last - first) <= EVEN * max(abs(first), abs(last), 1e-12):
            return f"{what} is alike on {hard} and {easy} classes {numbers}"
        than = "higher" if last > first else "lower"
        return f"{what} is {than} on {hard} than on {easy} classes {numbers}"

    return verdict


def _short(value: float) -> str:
    return f"{value:.3g}".replace("-", format.MINUS)


def _of_method(key: str) -> Callable[[View], Mapping[str, float]]:
    """Group means of the run's own method."""

    def means(view: View) -> Mapping[str, float]:
        tables = view.by_method(key)
        return _by_group(view, next(iter(tables.values()))) if tables else {}

    return means


def _medians(of: Callable[[View], Mapping[str, Sequence[float]]]) -> Callable[[View], Mapping[str, float]]:
    return lambda view: {group: q[LEVELS // 2] for group, q in of(view).items() if q}


def _margins(view: View) -> Mapping[str, Sequence[float]]:
    tables = view.by_method("logit_margin_quantiles")
    return next(iter(tables.values())) if tables else {}


def _features(key: str) -> Callable[[View], Mapping[str, Sequence[float]]]:
    return lambda view: view.features.get(key) or {}


def _related(what: str, key: str) -> Verdict:
    """The rank correlation of a measure of the features with accuracy, where it is more than chance."""
    return lambda view: _correlated(what, view, view.features.get(key))


def _correlated(what: str, view: View, values: Sequence[float | None] | None) -> str:
    pairs = [(row[3], row[4]) for row in view.by_class(values)] if values else []
    if len(pairs) < FEW_CLASSES:
        return "too few classes to tell"
    from scipy.stats import spearmanr

    first, second = zip(*pairs, strict=True)
    if len(set(first)) == 1 or len(set(second)) == 1:
        return f"no relation between {what} and accuracy: one of them is the same for all classes"
    value = float(spearmanr(first, second).statistic)
    if abs(value) * (len(pairs) - 1) ** 0.5 < RELATED:
        return f"no clear relation between {what} and accuracy (rank correlation {coefficient(value)})"
    kind = "lower" if value < 0 else "higher"
    return f"the larger the {what}, the {kind} the accuracy (rank correlation {coefficient(value)})"


def _margin_relation(view: View) -> str:
    found = view.result.get("margins") or {}
    of = {row["name"]: row["gamma"] for row in found.get("by_class") or ()}
    names = list(view.block.get("classes") or view.rows)
    return _correlated("margin", view, [of.get(name) for name in names])


def _settled(view: View) -> str:
    history = (view.result.get("margins") or {}).get("history") or []
    if len(history) < 2:
        return ""
    before, last = history[-2]["gamma"], history[-1]["gamma"]
    moved = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(before, last, strict=True))
    kind = "settled" if moved < EVEN else "still moving at the end"
    return f"{kind}: the last step on record changed a margin by at most {percent(moved)} %"


def _bound(view: View) -> str:
    tables = view.block.get("complexity") or {}
    if not tables:
        return ""
    sums = [sum(v for v in tables[k] if v is not None) for k in ("with_margins", "equal_margins")]
    return f"MR²'s margins give a bound of {sums[0] / max(sums[1], 1e-12):.3f} times that of equal margins"


def _training_bias(view: View) -> str:
    tables = view.by_method("on_train")
    told = ", ".join(f"{name} {percent(table['largest_excess'])} %" for name, table in tables.items())
    return f"largest departure from the class's own count: {told}" if told else ""


def _attracted(view: View) -> str:
    tables: Mapping[str, Sequence[float | None]] = next(iter(view.by_method("g_n_on").values()), {})
    means = {
        group: sum(v for v in values if v is not None)
        for group, values in tables.items()
        if any(v is not None for v in values)
    }
    if not means or not sum(means.values()):
        return "no probability goes to other classes"
    most = max(means, key=lambda group: means[group])
    share = percent(means[most] / sum(means.values()), 0)
    return f"{share} % of the probability given to wrong classes is on images of {most} classes"


def _norm_change(view: View) -> str:
    for block in view.methods.values():
        before, after = block.get("weight_norm_before"), block.get("weight_norm")
        if before and after:
            ratio = sum(filter(None, after)) / max(sum(filter(None, before)), 1e-12)
            return f"norms end at {ratio:.2f} times where they began, on average"
    return ""


def _mapped(view: View) -> str:
    points = view.features.get("map") or []
    wrong = sum(not point["right"] for point in points)
    return f"{wrong} of {plural(len(points), 'image')} on it are wrong"


def _best_values(view: View) -> str:
    from probe.report.charts.curves import sensitivity

    chart = sensitivity(view)
    best: dict[str, tuple[float, float]] = {}
    for name, value, score, statistic in chart.rows if chart else ():
        if statistic == "overall" and score > best.get(name, (0.0, -1.0))[1]:
            best[name] = value, score
    return "best overall: " + ", ".join(f"{name} {value:g}" for name, (value, _) in best.items())


def _of_chosen(quantiles: Callable[[View], Sequence[Sequence[float]] | None]) -> Verdict:
    """The medians of single classes."""

    def verdict(view: View) -> str:
        names = (str(view.block["classes"][k]) for k in view.block.get("chosen") or ())
        found = zip(names, quantiles(view) or (), strict=False)
        told = ", ".join(f"{name} {_short(q[LEVELS // 2])}" for name, q in found if q)
        return f"medians: {told}" if told else ""

    return verdict


def _margins_of_chosen(view: View) -> Sequence[Sequence[float]] | None:
    return next(iter(view.by_method("logit_margin_quantiles_of_chosen").values()), None)


VERDICTS: dict[str, Verdict] = {
    "sensitivity": _best_values,
    "representation-or-classifier": _cause,
    "class-curves": _cause,
    "prediction-bias": _groups("probability drawn from other classes", _of_method("g_n")),
    "prediction-bias-groups": _attracted,
    "own-probability": _groups("probability of own images", _of_method("g_p")),
    "training-bias": _training_bias,
    "logit-margins": _groups("the median margin", _medians(_margins)),
    "logit-margin-cdf": _groups("the median margin", _medians(_margins)),
    "logit-margin-cdf-classes": _of_chosen(_margins_of_chosen),
    "feature-spread": _related("spread", "spread2"),
    "feature-variance": _related("variance norm", "variance_norm"),
    "separability": _related("separability", "separability"),
    "angles": _groups("the median angle", _medians(_features("angle_quantiles"))),
    "angles-to-weights": _groups("the median angle", _medians(_features("angle_to_weight_quantiles"))),
    "largest-distances": _groups("the median", _medians(_features("largest_distance_quantiles"))),
    "largest-distances-classes": _of_chosen(
        lambda view: view.features.get("largest_distance_quantiles_of_chosen")
    ),
    "margins": _margin_relation,
    "margin-history": _settled,
    "complexity": _bound,
    "weight-norms": _groups("the norm", _of_method("weight_norm")),
    "weight-norms-before": _norm_change,
    "class-mean-angle": _groups("the mean cosine", _of_method("class_mean_angle")),
    "t-sne": _mapped,
    "t-sne-groups": lambda view: "a picture, not a measurement",
}
