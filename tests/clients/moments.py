"""The moment when this process began to run a Python program. Imported before everything else."""

import time

# The clock is the same for all processes.
MAIN = time.monotonic()
