"""halogen: four processes that serve language models and change their weights without losing a request."""

import os

# grpc reads it when it is first imported; below an error it tells, in lines that are no JSON, of ordinary endings.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
