"""Where the batches of a training come from: which samples, in what order, in which random views."""
