"""The wire's settings: channel arguments, statuses, health, reflection; the same on both sides."""
