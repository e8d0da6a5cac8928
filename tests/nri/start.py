"""What a container starts: imports most of Python's modules, touches a page in each 64 KiB of a mapped file, and says
what that cost. Its images' files are those that the test compares."""

import importlib
import json
import mmap
import os
import resource
import sys
import time

before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
began = time.monotonic()
names = sorted(sys.stdlib_module_names - {"antigravity", "this", "idlelib", "turtledemo", "lib2to3"})
for name in names:
    try:
        importlib.import_module(name)
    except Exception:
        # Those of other systems.
        pass
with open("/srv/weights", "rb") as file:
    weights = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    weights.madvise(mmap.MADV_RANDOM)
    places = range(0, len(weights), 64 << 10)
    total = sum(weights[(place * 7919) % len(weights)] for place in places)
used = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
said = {"majors": used, "before": before, "seconds": round(time.monotonic() - began, 3), "total": total}
print(json.dumps(said), flush=True)
if "--stay" in sys.argv:
    time.sleep(1000)
os._exit(0)
