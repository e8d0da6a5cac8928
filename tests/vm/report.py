"""What a run prints: failures as they come, a table for several kernels, and one closing line."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from dataclasses import astuple

from job import Job, Result

# About how many times a quiet run reports its progress, and after how many tests at least.
PROGRESS_LINES = 20
PROGRESS_LEAST = 25


class Report:
    def __init__(self, jobs: list[Job], verbose: bool) -> None:
        self.jobs = jobs
        self.verbose = verbose
        self.lock = threading.Lock()
        self.total = sum(len(job.planned()) for job in jobs)
        self.seen = 0

    def heard(self, result: Result) -> None:
        """Prints a result if it is worth a line. Locks, as machines run side by side."""
        with self.lock:
            self.seen += 1
            not_run = result.message.startswith("not run")
            if self.verbose or (result.status == "fail" and not not_run):
                words = f"{result.status}  {result.kernel} {result.fs} {result.test} {result.ms} ms  {result.message}"
                print(words.rstrip(), flush=True)
            if self.seen % max(PROGRESS_LEAST, self.total // PROGRESS_LINES) == 0:
                # A run that is ended has them, too.
                self.keep()
                if not self.verbose:
                    print(f"... {self.seen} of {self.total}", file=sys.stderr, flush=True)

    def keep(self) -> None:
        """Writes every result beside the consoles, to show what each test took if a run is too long."""
        for folder in {job.folder for job in self.jobs}:
            results = [result for job in self.jobs if job.folder == folder for result in job.results]
            rows = ["kernel\tfs\ttest\tstatus\tms\tmessage", *("\t".join(map(str, astuple(it))) for it in results)]
            (folder / "results.tsv").write_text("\n".join(rows) + "\n")

    def close(self) -> int:
        """Prints the table, where to look after a failure, and the closing line. Returns the exit status."""
        counts = {job.name: Counter(result.status for result in job.results) for job in self.jobs}
        for error, names in self.errors().items():
            print(f"{' '.join(names)}: {error}")
        if len({job.kernel for job in self.jobs}) > 1:
            self.table(counts)
        for job in self.jobs:
            self.console(job, counts[job.name]["fail"])
        self.keep()
        total = sum(counts.values(), Counter())
        # The rig's own tests are not enough for a run: some part of rfs must have been tested.
        for job in self.jobs:
            self.unlike_a_pass(job)
        own = {"module_unload", "kmemleak"}
        executed = [
            result
            for job in self.jobs
            for result in job.results
            if result.test not in own and result.status != "skip" and not result.message.startswith("not run")
        ]
        if not executed:
            print("no test was executed, which is a failure")
        skipped = f", {total['skip']} skipped" if total["skip"] else ""
        flaky = sum(len(job.flaky) for job in self.jobs)
        if flaky:
            print(f"{flaky} flaky, which counts as passed; not with STRICT=1")
        print(f"{total['pass']} passed, {total['fail']} failed{skipped}")
        is_strict = os.environ.get("STRICT", "0") not in ("", "0")
        return 0 if executed and not total["fail"] and not (flaky and is_strict) else 1

    def unlike_a_pass(self, job: Job) -> None:
        """Lines for tests that did not fail, but are no simple pass either; total.py reads them."""
        for result in job.results:
            if result.status == "skip":
                print(f"skip  {job.kernel}/{job.fs}/{result.test}: {result.message.removeprefix('skipped: ')}")
        for test, why in job.flaky.items():
            print(f"flaky  {job.kernel}/{job.fs}/{test}: passed at its second try, after: {why}")

    def errors(self) -> dict[str, list[str]]:
        """Why machines could not boot; both file systems of a kernel fail for the same reason."""
        found: dict[str, list[str]] = {}
        for job in self.jobs:
            if job.error:
                found.setdefault(job.error, []).append(job.name)
        return found

    def console(self, job: Job, failed: int) -> None:
        """Where to look, and why tests did not run."""
        if not failed:
            return
        not_run = [result.message for result in job.results if result.message.startswith("not run")]
        tail = f" ({len(not_run)} {not_run[0]})" if not_run else ""
        where = f"; console: {job.console}" if job.console.exists() else ""
        print(f"{job.name}: {failed} failed{tail}{where}")

    def table(self, counts: dict[str, Counter[str]]) -> None:
        systems = list(dict.fromkeys(job.fs for job in self.jobs))
        heads = "".join(f"  {fs + ' passed/failed/skipped':<28}" for fs in systems)
        print(f"{'kernel':<8}  {'version':<20}{heads}".rstrip())
        for kernel in dict.fromkeys(job.kernel for job in self.jobs):
            cells = []
            for fs in systems:
                own = [job.name for job in self.jobs if (job.kernel, job.fs) == (kernel, fs)]
                count = sum((counts[name] for name in own), Counter())
                cells.append(f"  {count['pass']}/{count['fail']}/{count['skip']}".ljust(30))
            version = next(job.version for job in self.jobs if job.kernel == kernel)
            print((f"{kernel:<8}  {version:<20}" + "".join(cells)).rstrip())
