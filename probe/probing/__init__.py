"""A head on frozen features: the problem, the choice of l2, and the exact solvers."""
