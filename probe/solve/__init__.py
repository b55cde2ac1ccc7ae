"""Exact solvers of heads on fixed features: logistic regression, ridge, nearest neighbours."""
