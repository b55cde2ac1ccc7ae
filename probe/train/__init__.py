"""Training by gradient steps: probing on cached features, and fine-tuning."""
