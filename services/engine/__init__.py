"""The engine: token ids in, token ids out. The one room that knows torch."""

import os

# torch's OpenMP threads wait for one another by spinning, which is measured to cost nine tenths of the speed as
# soon as another process wants one of the cores. They read this when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
