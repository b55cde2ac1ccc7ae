"""The self-contained pages of runs and comparisons."""
