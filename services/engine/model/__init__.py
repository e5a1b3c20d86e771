"""Models: what an artifact's config.json and tensors compute."""
