"""A run and its folder: the only room that knows all others. Also compare, predict and report."""
