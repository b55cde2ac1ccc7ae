"""Several processes: launching them, and what shards a model or its optimiser."""
