"""Benchmarks that a reader can repeat by command; `python -m benchmarks` lists them.

Promises: importing this package keeps numerical libraries on one thread, so times are those of one core.
Refuses: nothing; it holds no code of its own.
Called by: `make bench` and people.
"""

import os

# Thread pools read these when they are first imported, so they must be set before numpy is.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
