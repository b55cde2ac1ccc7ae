"""The conclusion of a run in a few sentences, written from the numbers of its result and nothing else.

How good, which classes suffer and why, what helped and whether that is certain, what to do next. A sentence
claims only what an interval or a test supports; otherwise it says that nothing is clear.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from probe.report.text import certainty, format
from probe.report.text.format import gain_interval, gained, interval, percent, plural

Result = Mapping[str, Any]
NAMED = 3  # classes that are named, at most
CHECK_LABELS = 0.01  # share of training labels that may be wrong, from which on checking them comes first
FEW_IMAGES = "few images"
AMONG_OTHERS = "among others"
# What a reason of `look_first` is called after the name of a class.
REASONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "confused": lambda row: (
        f"{'confused with' if row['confused']['both_ways'] else 'mistaken for'} {row['confused']['with']}"
    ),
    FEW_IMAGES: lambda row: f"only {plural(row['train_n'], 'training image')}",
    "suspect labels": lambda row: "suspect labels",
    "unlike images": lambda row: "images unlike each other",
    AMONG_OTHERS: lambda row: "lies among other classes",
    "conflicting duplicates": lambda row: "near-duplicates under another label",
    "repeated images": lambda row: "many near-duplicates",
}
CAUSES = {
    "representation": "the features are the limit, not the classifier: a k-NN vote falls as much",
    "classifier": "the classifier is the limit, not the features: a k-NN vote falls much less",
    "both": "features and classifier both have a part: a k-NN vote falls less",
}


def conclusion(result: Result) -> list[str]:
    """One to three sentences; the last says what helped, and what to do next."""
    helped = "; ".join(filter(None, (how_it_trained(result), what_helped(result))))
    following = what_next(result)
    last = "; next, ".join(filter(None, (helped, following))) if helped else f"Next, {following}"
    said = (how_good(result), who_suffers(result), last if helped or following else "")
    return [f"{sentence}." for sentence in said if sentence]


def how_good(result: Result) -> str:
    """Accuracy with its interval, and how far easy and hard classes are apart."""
    test = result["test"]
    images = sum(row["n"] for row in test["by_class"])
    if len(test["by_class"]) == 1:
        return f"There is only one class, so an accuracy of {percent(test['top1'])} % says nothing"
    who = (result.get("backbone") or {}).get("name") or "The model"
    data = (result.get("data") or {}).get("name")
    on = f" of {format.data(data)}" if data else ""
    if test["top1"] == 1:
        at_least = f"95 %: at least {percent(test['ci'][0])} %" if test.get("ci") else "no interval"
        return f"{who} gets all {images:,} test images{on} right ({at_least})"
    about = f"{percent(test['top1'])} % of the test images{on} right (95 %: {interval(test['ci'])})"
    known = [(name, g) for name, g in test["groups"].items() if g["accuracy"] is not None]
    if len(known) < 2:
        return f"{who} gets {about}"
    (easy, first), (hard, last) = known[0], known[-1]
    return (
        f"{who} gets {about}: {percent(first['accuracy'])} % on {easy} classes, "
        f"{percent(last['accuracy'])} % on {hard} ones"
    )


def who_suffers(result: Result) -> str:
    """The classes that are clearly below the rest, with the likely reason of each, and the cause."""
    test = result["test"]
    if len(test["by_class"]) == 1 or test["top1"] == 1:
        return ""
    worst = certainty.clearly_below(test)
    if not worst:
        if certainty.classes_differ(test["by_class"]):
            return "Classes differ, but no single one is clearly below the average"
        return "No class is clearly harder than another: they differ no more than chance would make them"
    named = [_with_reason(row, result) for row in worst[:NAMED]]
    found = certainty.cause(result)
    verb = "Hardest is" if len(named) == 1 else "Hardest are"
    return "; ".join(filter(None, (f"{verb} {format.listed(named)}", CAUSES.get(found or "", ""))))


def _with_reason(row: Mapping[str, Any], result: Result) -> str:
    """`Ragdoll (70 %, confused with Birman)`; test images say among which others a class lies."""
    diagnostics = result.get("diagnostics") or {}
    found = (diagnostics.get("look_first") or {}).get("classes") or ()
    reasons = next((_reasons(other) for other in found if other["name"] == row["name"]), [])
    if not reasons or reasons[-1] == REASONS[AMONG_OTHERS](row):
        pairs = (c for c in diagnostics.get("confusions") or () if c["true"] == row["name"])
        reasons += [f"mistaken for {c['predicted']}" for c in pairs][:1]
    inside = ", ".join((f"{percent(row['accuracy'], 0)} %", *reasons))
    return f"{row['name']} ({inside})"


def _reasons(row: Mapping[str, Any]) -> list[str]:
    """The strongest reason of a class of `look_first`, after few images, which explain others."""
    names = [reason["reason"] for reason in row["reasons"]]
    told = dict.fromkeys([*(n for n in names if n == FEW_IMAGES), *names[:1]])
    return [REASONS[name](row) for name in told if name in REASONS]


def how_it_trained(result: Result) -> str:
    """That a training did harm, where it clearly did; else nothing."""
    gain = (result.get("training") or {}).get("gain")
    if gain is None or not _harms(gain):
        return ""
    return f"Training did harm: {gained(gain)} points against its start (95 %: {gain_interval(gain['ci'])})"


def hardest_gain(result: Result) -> tuple[str, Mapping[str, Any]] | None:
    """The gain on the hardest group that has one, and what to call it; overall where there are no groups."""
    gains = (result.get("versus") or {}).get("gain") or {}
    groups = [name for name in result["test"]["groups"] if gains.get(name)]
    if len(groups) > 1:
        return f"on {groups[-1]} classes", gains[groups[-1]]
    return ("overall", gains["overall"]) if gains.get("overall") else None


def what_helped(result: Result) -> str:
    """The method against its reference, and how certain that is; empty where nothing was compared."""
    found, versus = hardest_gain(result), result.get("versus") or {}
    if found is None:
        return ""
    (where, hard), whole = found, versus["gain"].get("overall")
    method, reference = format.method(result), format.against(versus["method"], versus.get("how"))
    one_seed = ", with one seed" if versus.get("seeds") == 1 else ""
    clear = [g for g in versus["gain"].values() if g and g["clear"]]
    points = f"{gained(hard)} points {where} (95 %: {gain_interval(hard['ci'])}{one_seed})"
    beside = f", {gained(whole)} overall" if whole and where != "overall" else ""
    if not clear:
        return f"{method} makes no clear change to {reference}: {points}{beside}"
    if hard["clear"] and hard["mean"] > 0:
        cost = f", but clearly costs {gained(whole)} overall" if _harms(whole) else beside
        return f"{method} clearly helps over {reference}: {points}{cost}"
    if _harms(hard) or _harms(whole):
        return f"{method} does harm against {reference}: {points}{beside}"
    kind = "helps" if all(g["mean"] > 0 for g in clear) else "changes"
    others = [_where(name) for name, g in versus["gain"].items() if g and g["clear"]]
    return f"{method} clearly {kind} {reference} {format.listed(others)}, but not {where}: {points}{beside}"


def _where(name: str) -> str:
    return {"overall": "overall", "mean_per_class": "in the mean per class"}.get(name, f"on {name} classes")


def _harms(gain: Mapping[str, Any] | None) -> bool:
    return bool(gain and gain["clear"] and gain["mean"] < 0)


def what_next(result: Result) -> str:
    """The first two steps of the table that apply."""
    steps = [say for rule in STEPS if (say := rule(result))][:2]
    return ", then ".join(steps)


def _leak(result: Result) -> str:
    found = ((result.get("data") or {}).get("duplicates") or {}).get("train_test") or {}
    count = found.get("count", 0)
    return f"remove {plural(count, 'test image')} that training has too" if count else ""


def _keep_reference(result: Result) -> str:
    found, versus = hardest_gain(result), result.get("versus") or {}
    harmful = found and (_harms(found[1]) or _harms(versus["gain"].get("overall")))
    helps = found and found[1]["clear"] and found[1]["mean"] > 0
    return f"keep {versus['method']}" if harmful and not helps else ""


def _train_gently(result: Result) -> str:
    harmed = how_it_trained(result)
    return "train with a smaller train.lr, fewer train.epochs or train.wise=[0,0.5,1]" if harmed else ""


def _check_labels(result: Result) -> str:
    found = (result.get("diagnostics") or {}).get("look_first") or {}
    expected = (found.get("suspects") or {}).get("expected") or 0
    if not found or expected < CHECK_LABELS * found["images"]:
        return ""
    return f"check about {expected:,.0f} training labels that may be wrong"


def _collect(result: Result) -> str:
    rows = ((result.get("diagnostics") or {}).get("look_first") or {}).get("classes") or ()
    few = [row["name"] for row in rows if any(r["reason"] == FEW_IMAGES for r in row["reasons"])]
    more = f" and {plural(len(few) - NAMED, 'further class')}" if len(few) > NAMED else ""
    names = ", ".join(few[:NAMED]) if more else format.listed(few) if few else ""
    return f"collect images of {names}{more}" if few else ""


def _improve(result: Result) -> str:
    recipe, test = result.get("recipe") or {}, result["test"]
    if test["top1"] == 1 or len(test["by_class"]) == 1 or not recipe.get("data") or recipe.get("finetune"):
        return ""
    return "let `probe improve` try further backbones, views and methods"


def next_command(result: Result) -> str:
    """`probe improve` for the data, the backbone and the settings of this run; empty where it is no step."""
    words = shlex.split(result.get("command") or "")
    if "--method" not in words or _improve(result) not in what_next(result).split(", then ")[-1:]:
        return ""
    at = words.index("--method")  # what improve starts from is erm
    return shlex.join(["probe", "improve", *words[2:at], *words[at + 2 :]])


def _tune_again(result: Result) -> str:
    recipe = result.get("recipe") or {}
    return "see what `probe improve` gains with the backbone frozen" if recipe.get("finetune") else ""


def _harder_test(result: Result) -> str:
    test = result["test"]
    perfect = test["top1"] == 1 and len(test["by_class"]) > 1
    return "use a larger or harder test set, because this one shows no difference" if perfect else ""


def _one_class(result: Result) -> str:
    return "use data with at least two classes" if len(result["test"]["by_class"]) == 1 else ""


STEPS = (
    _one_class,
    _harder_test,
    _leak,
    _train_gently,
    _keep_reference,
    _collect,
    _check_labels,
    _improve,
    _tune_again,
)
