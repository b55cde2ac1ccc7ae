"""Arithmetic that several rooms share: class statistics, adjustments, scaling, theory, collectives."""
