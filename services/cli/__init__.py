"""The `halogen` command: a client of the wire, and the launcher of the five processes on one machine."""

import os

# Whoever forks after it has used gRPC has gRPC's own handlers run in the child, unless they are off when it is first
# imported: at best they warn that they cannot run.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
