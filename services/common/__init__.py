"""What all processes share: errors, configuration, the wire's settings, the registry, the checkpoint format."""
