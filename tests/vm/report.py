"""What a run says: failures as they come, a table for several kernels, and one closing line."""

from __future__ import annotations

import sys
import threading
from collections import Counter

from job import Job, Result

# How often a quiet run says how far it is.
PROGRESS_EVERY = 50


class Report:
    def __init__(self, jobs: list[Job], verbose: bool) -> None:
        self.jobs = jobs
        self.verbose = verbose
        self.lock = threading.Lock()
        self.total = sum(len(job.planned()) for job in jobs)
        self.seen = 0

    def heard(self, result: Result) -> None:
        """Prints a result if it is worth a line. Machines run side by side, so one at a time."""
        with self.lock:
            self.seen += 1
            not_run = result.message.startswith("not run")
            if self.verbose or (result.status == "fail" and not not_run):
                words = f"{result.status}  {result.kernel} {result.fs} {result.test} {result.ms} ms  {result.message}"
                print(words.rstrip(), flush=True)
            if not self.verbose and self.seen % PROGRESS_EVERY == 0:
                print(f"... {self.seen} of {self.total}", file=sys.stderr, flush=True)

    def close(self) -> int:
        """The table, where to look on failure, and the closing line. Returns the exit status."""
        counts = {job.name: Counter(result.status for result in job.results) for job in self.jobs}
        for job in self.jobs:
            if job.error:
                print(f"{job.name}: {job.error}")
        if len({job.kernel for job in self.jobs}) > 1:
            self.table(counts)
        for job in self.jobs:
            not_run = sum(result.message.startswith("not run") for result in job.results)
            if counts[job.name]["fail"]:
                tail = f" ({not_run} not run)" if not_run else ""
                print(f"{job.name}: {counts[job.name]['fail']} failed{tail}; console: {job.console}")
        total = sum(counts.values(), Counter())
        # The rig's own tests do not make a run: something of rfs must have been tested.
        own = {"module_unload", "kmemleak"}
        executed = [result for job in self.jobs for result in job.results if result.test not in own]
        executed = [result for result in executed if result.status != "skip" and not result.message.startswith("not run")]
        if not executed:
            print("no test was executed, which is a failure")
        skipped = f", {total['skip']} skipped" if total["skip"] else ""
        print(f"{total['pass']} passed, {total['fail']} failed{skipped}")
        return 0 if executed and not total["fail"] else 1

    def table(self, counts: dict[str, Counter[str]]) -> None:
        systems = list(dict.fromkeys(job.fs for job in self.jobs))
        print(f"{'kernel':<8}" + "".join(f"  {fs + ' passed/failed/skipped':<28}" for fs in systems))
        for kernel in dict.fromkeys(job.kernel for job in self.jobs):
            cells = []
            for fs in systems:
                count = counts[f"{kernel}-{fs}"]
                cells.append(f"  {count['pass']}/{count['fail']}/{count['skip']}".ljust(30))
            print((f"{kernel:<8}" + "".join(cells)).rstrip())
