"""Second stages on frozen features: what becomes of a head, solved or trained before, without its encoder.

| name        | the second stage                                                    | chosen by the holdout |
|-------------|---------------------------------------------------------------------|-----------------------|
| crt         | a new head: the loss, every class counting alike                    | l2                    |
| jtt         | a new head: the loss, the first head's errors counting `up` times   | l2                    |
| tau-norm    | w_k / |w_k|^tau, without a bias                                     | tau                   |
| lws         | f_k z_k, the K scales learnt with every class counting alike        |                       |
| la-posthoc  | z - tau log pi                                                      |                       |
| temperature | z / T                                                               | T                     |

The first head is one that a run left, or the exact solution of a loss. Whatever the holdout chooses is chosen
for a head that has not seen it; the head that is kept is made of all rows, the holdout included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probe.errors import UserError
from probe.heads.fitted import OnScaled
from probe.probing import exact
from probe.probing.post_hoc import LWS, PostHocLA, TauNorm, Temperature
from probe.probing.problem import Fit, ProbeProblem
from probe.probing.refits import CRT, JTT
from probe.probing.selection import HOLDOUT, Selector
from probe.probing.settings import SolverSettings
from probe.probing.stage import Images, SecondStage, StageSettings

STAGES: dict[str, type[SecondStage]] = {
    "crt": CRT,
    "jtt": JTT,
    "tau-norm": TauNorm,
    "lws": LWS,
    "la-posthoc": PostHocLA,
    "temperature": Temperature,
}


def check(settings: StageSettings, solver: SolverSettings) -> None:
    """Refuse what could only fail, or would silently be something else, before anything is computed."""
    if solver.name != "lbfgs":
        raise UserError(f"{settings.name} is solved on frozen features: use solver lbfgs, not {solver.name}")
    exact.check(settings.loss, solver)
    first, stage = settings.first, STAGES[settings.name]
    if first is not None and first.saw_holdout and stage.chooses(settings.params):
        raise UserError(
            f"{settings.name}: {first.run} has learnt from every training image, so none is left to choose "
            f"{stage.choice} by; {stage.way_out}train it with train.keep=best"
        )


def fit(problem: ProbeProblem, settings: StageSettings, solver: SolverSettings, holdout: Images) -> Fit:
    """Choose on the `holdout` images what the settings leave open, then make the head of all images."""
    stage = STAGES[settings.name](problem, settings, solver, holdout)
    stage.choose()
    return stage.fit()


def fit_selected(
    problem: ProbeProblem, points: Sequence[StageSettings], solver: SolverSettings, selector: Selector
) -> Fit:
    """The same for the best of several settings, by the selector's objective on its holdout."""
    judge, objective = selector.holdout_judge, selector.objective
    judge.check(objective)
    stages = [STAGES[point.name](problem, point, solver, selector.holdout) for point in points]
    scores = []
    for stage in stages:
        stage.choose()
        predicted = problem.logits(OnScaled(stage.head(stage.kept)), selector.holdout).argmax(dim=1).numpy()
        scores.append(judge.scores(predicted == judge.labels))
    best = objective.best(scores, [0.0] * len(stages))
    tried = [{"parameters": dict(p.params), **row} for p, row in zip(points, scores, strict=True)]
    about = {**selector.described(HOLDOUT), "parameters": dict(points[best].params), "tried": tried}
    made = stages[best].fit()
    return replace(made, record={**made.record, "select": about})
