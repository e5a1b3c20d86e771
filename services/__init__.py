"""halogen: four processes that serve language models and change their weights without losing a request."""
