"""What a training step is fed: samples in order, batches, random views."""
