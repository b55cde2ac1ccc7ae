"""What result.json says besides accuracies: what was run, on what, and what to keep in mind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe import data, methods
from probe.data import duplicates
from probe.evaluation import metrics
from probe.losses.base import FitContext, Margins
from probe.report.text import format
from probe.runs import draws, selecting
from probe.runs.experiment import Experiment
from probe.runs.inputs import AnyBackbone, device
from probe.runs.naming import command, label
from probe.system import environment

SCHEMA = 1
WEAK = 0.1  # rank correlation below which margins do not follow difficulty


def describe(e: Experiment) -> dict[str, Any]:
    """Everything needed to know what was run, and to run it again."""
    d, f = e.inputs.data, e.inputs.features
    official = "val" in f
    return {
        "schema": SCHEMA,
        "recipe": e.recipe.model_dump(),
        "command": command(e.recipe),
        "method": label(e.recipe),
        "method_versions": methods.catalogue.versions(e.recipe.method.name, e.recipe.method.params),
        "backbone": backbone_block(e),
        "data": {
            "name": d.name,
            "source": d.source,
            "metric": d.metric,
            "sizes": {split: len(part.y) for split, part in f.items()},
            "fingerprints": {split: d[split].fingerprint for split in f},
            "skipped": {split: part.skipped for split, part in f.items() if part.skipped},
            "duplicates": e.inputs.duplicates,
            **({"draws": draws.record(e.recipe, [e.inputs, *e.further])} if e.further else {}),
            "test_cut": None if d.test_cut is None else d.test_cut.record(),
            "validation": {
                "from": "official split" if official else "stratified cut of train",
                "fraction": None if official else e.recipe.data.val_fraction,
                "digests": None if official else _holdout_digests(e),
            },
        },
        "views": {
            "learnt": [view.name for view in e.inputs.learnt_views],
            "averaged": [view.name for view in e.inputs.averaged_views],
        },
        "seeds": [{"seed": seed, **fit.record} for seed, fit in enumerate(e.fitted.fits)],
        "environment": {**environment.describe(), "device": device(e.recipe)},
    }


def _holdout_digests(e: Experiment) -> list[str]:
    """Which training images each seed held out."""
    ids = (np.array(e.inputs_of(seed).features["train"].ids, dtype=object) for seed in range(len(e.holdouts)))
    return [data.holdout_digest(mine[rows]) for mine, rows in zip(ids, e.holdouts, strict=True)]


def backbone_block(e: Experiment) -> dict[str, Any]:
    """What was probed; several backbones, or taps, whose features stand side by side, are told one by one."""
    parts = [
        {
            "name": b.name,
            "dim": b.dim,
            "tap": b.tap,
            "fingerprint": unmoved(b),
            "preprocessing": asdict(b.preprocessing),
        }
        for b in e.inputs.backbones
    ]
    if len(parts) == 1:
        return parts[0]
    return {
        **parts[0],
        "name": e.recipe.backbone.title,
        "dim": sum(e.inputs.widths),
        "tap": "+".join(b.tap for b in e.inputs.backbones),
        "fingerprint": e.inputs.fingerprint,
        "parts": parts,
    }


def unmoved(backbone: AnyBackbone) -> str:
    """The backbone's fingerprint, proven by a second hash: no weight has moved since extraction."""
    if backbone.digest() != backbone.fingerprint:
        raise RuntimeError(f"the weights of {backbone.name} changed while they should have been frozen")
    return backbone.fingerprint


def remarks_and_margins(
    e: Experiment, said: Sequence[str | None] = (), held_out: NDArray[np.float64] | None = None
) -> dict[str, Any]:
    """What a reader must know to read the numbers right (`said` is more of it), and MR²'s margins if any.

    `held_out` are the K accuracies of the plain model on held-out training rows, which margins are judged by.
    """
    recipe, fits, inputs = e.recipe, e.fitted.fits, e.inputs
    loss = fits[0].loss
    exact = recipe.solver.name == "lbfgs" and not recipe.finetune
    selects = "select" in fits[0].record  # where class weights are settled for every l2 that is tried
    around = recipe.method.name if methods.catalogue.wraps(recipe.method.name) else None
    context = FitContext(exact, l2_chosen=recipe.solver.l2 is None and not selects, method=around)
    notes: list[str | None] = [] if loss is None else [*loss.remarks(context)]
    notes += fits[0].remarks
    gaps = [fit.record["gap"] for fit in fits if "gap" in fit.record]
    if gaps:
        from probe.train import final_check

        notes.append(final_check.remark(gaps))
    searched = {"validation", "select_l2"} & fits[0].record.keys() or (selects and not recipe.finetune)
    if loss is not None and searched and recipe.trains and loss.adjustment() is None:
        notes.append(
            f"l2 was chosen by plain cross-entropy probes, since {loss.name} has no exact solver; if the "
            "result is poor, give a smaller one with solver.l2"
        )
    notes.append(draws.remark(recipe, len(fits)) if e.further else None)
    notes.append(selecting.remark(recipe, [fit.record for fit in fits]))
    if len(fits) < recipe.seeds:
        notes.append(f"nothing here depends on the seed, so one was run instead of {recipe.seeds}")
    if inputs.untrained and not recipe.finetune:
        names = " and ".join(inputs.untrained)
        notes.append(f"{names} has random weights: give trained ones with --weights, or --finetune")
    if len(recipe.train.wise) > 1:
        chosen = ", ".join(f"{fit.record['alpha']:g}" for fit in fits)
        notes.append(f"between start (0) and end (1) validation chose alpha {chosen}")
    notes += said
    notes.append(inputs.data.thinned or None)
    notes.append(None if inputs.data.test_cut is None else inputs.data.test_cut.remark)
    notes.append(duplicates.remark(inputs.duplicates))
    skipped = sum(len(f.skipped) for f in inputs.features.values())
    if skipped:
        notes.append(f"{skipped} images could not be read and were left out")
    found = None if loss is None else loss.margins()
    block = None if found is None else margins(e.problem.class_names, found, held_out)
    notes.append(None if block is None else margins_remark(block.get("rank_correlation")))
    return {"remarks": [n for n in notes if n], "margins": block}


def margins_remark(correlation: float | None) -> str | None:
    """Do margins do what they are meant to: are they larger for harder classes?"""
    if correlation is None:
        return None
    if abs(correlation) < WEAK:
        says = "margins hardly follow how hard a class is"
    else:
        says = f"margins are larger for {'harder' if correlation > 0 else 'easier'} classes"
    number = format.coefficient(correlation)
    return f"{says}: {number} (rank correlation with the error on held-out training images)"


def margins(
    class_names: Sequence[str], found: Margins, held_out: NDArray[np.float64] | None = None
) -> dict[str, Any]:
    """Every class's margin and the statistics behind it, the extremes first."""
    columns = zip(class_names, found.gamma, found.mean_norm2, found.spread2, strict=True)
    by_class = [
        {"name": name, "gamma": float(g), "mean_norm2": float(m), "spread2": float(s)}
        for name, g, m, s in columns
    ]
    judged: dict[str, Any] = {}
    if held_out is not None:
        for row, accuracy in zip(by_class, held_out, strict=True):
            row["held_out_accuracy"] = float(accuracy)
        judged["rank_correlation"] = metrics.rank_correlation(found.gamma.double().numpy(), -held_out)
    order = found.gamma.argsort().tolist()
    ends = {"smallest": by_class[order[0]], "largest": by_class[order[-1]]}
    return {
        **{w: {"class": r["name"], "gamma": r["gamma"]} for w, r in ends.items()},
        **judged,
        "by_class": by_class,
        "history": [
            {"step": step, "gamma": [float(f"{gamma:.5g}") for gamma in gammas]}
            for step, gammas in found.history
        ],
    }
