"""When this process has come to be a Python that runs a program. It is imported before all else."""

import time

# By the clock that all processes share.
MAIN = time.monotonic()
