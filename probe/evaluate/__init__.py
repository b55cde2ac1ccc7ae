"""Accuracy by class and by group, with error bars, and paired comparisons of methods."""
