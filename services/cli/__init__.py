"""The `halogen` command: a client of the wire, and the launcher of the five processes on one machine."""
