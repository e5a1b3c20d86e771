"""The `halogen` command: a client of the wire, and the launcher of the five processes on one machine."""

import os

# The launcher forks its children after it has used gRPC; gRPC's own fork handlers, chosen when it is first
# imported, would only warn that they cannot run.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
