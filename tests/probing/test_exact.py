"""The exact solver that stands beside other solvers."""

import pytest

from probe.probing.exact import exactly
from probe.recipe import SolverConfig


@pytest.mark.parametrize(("solver", "l2"), [("lbfgs", 3.0), ("sgd", 3.0), ("ridge", None), ("knn", None)])
def test_the_plain_probe_shares_a_given_l2_with_solvers_of_the_same_objective(solver, l2):
    beside = exactly(SolverConfig(name=solver, l2=3.0))
    assert (beside.name, beside.l2) == ("lbfgs", l2)
