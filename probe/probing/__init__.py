"""A head on frozen features: the problem, its strength, and the ways to solve it exactly."""
