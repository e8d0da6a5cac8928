"""Whole starts without starting a program: choices, faults, counts and tables."""

import contextlib
import io
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ("clients", "gpu")]

import disk  # noqa: E402
import gpu_start  # noqa: E402
import ground  # noqa: E402
import group  # noqa: E402
import hostmemory  # noqa: E402
import loaders  # noqa: E402
import onestart  # noqa: E402
import outcomes  # noqa: E402
import packages  # noqa: E402
import programs  # noqa: E402
import reclaim  # noqa: E402
import starts  # noqa: E402
import weights  # noqa: E402
from outcomes import Start  # noqa: E402

USUAL = outcomes.USUAL_TURNS
MOMENTS = {"main": 11.0, "imported": 13.0, "loaded": 16.0, "end": 16.5}


def some(row: str, **seconds: float) -> list[Start]:
    """Sound starts, one for each argument; underscores in turns stand for hyphens."""
    told = {turn.replace("_", "-"): took for turn, took in seconds.items()}
    return [Start(row, turn, took, [took / 2, took / 2], 10, "d", loaded=5) for turn, took in told.items()]


class Outcomes(unittest.TestCase):
    def test_the_penalty_is_what_cold_starts_take_longer(self) -> None:
        self.assertAlmostEqual(outcomes.removed(30.0, 10.0, 12.0), 0.9)
        self.assertAlmostEqual(outcomes.removed(30.0, 10.0, 35.0), -0.25)
        self.assertEqual(outcomes.removed(10.0, 10.0, 9.0), 0.0)

    def test_medians_are_of_sound_starts_and_of_whole_rounds(self) -> None:
        rounds = [one for at in (12, 90, 14) for one in some("a", cold=30, warm=10, first=31, later=at)]
        broken = Start("a", "later", 1.0, broken="exit status 1")
        half = some("b", cold=3, warm=1)
        (found,) = outcomes.outcomes([*rounds, broken, *half], USUAL)
        self.assertEqual((found.row, found.times["later"]), ("a", 14))
        self.assertAlmostEqual(found.removed, 0.8)
        text = outcomes.report([found], USUAL)
        self.assertIn("0.80", text)
        self.assertIn("penalty removed", text.splitlines()[0])

    def test_there_is_no_penalty_without_its_turns(self) -> None:
        (found,) = outcomes.outcomes(some("a", cold=3, model_first=2), ["cold", "model-first"])
        self.assertIsNone(found.removed)
        self.assertIn("model-first", outcomes.report([found], ["cold", "model-first"]))

    def test_a_start_cannot_be_faster_than_the_disk_delivers(self) -> None:
        rounds = some("a", cold=30, warm=5, first=25, later=15)
        for one in rounds:
            one.device, one.bandwidth = 1_000, 100
        (found,) = outcomes.outcomes(rounds, USUAL)
        self.assertAlmostEqual(found.alone, 10.0)
        self.assertAlmostEqual(found.removed, 0.6)
        self.assertAlmostEqual(found.possible, 0.75)
        self.assertIn("0.60           10.00               0.75", outcomes.report([found], USUAL))
        for one in rounds:
            one.device = 100
        (found,) = outcomes.outcomes(rounds, USUAL)
        self.assertAlmostEqual(found.possible, 0.6, msg="nor faster than with everything cached")

    def test_with_little_memory_the_penalty_is_that_of_all_of_it(self) -> None:
        plain = some("a", cold=30, warm=10, first=30, later=12)
        little = some("a, 45%", cold=30, warm=29, first=30, later=20)
        for one in little:
            one.limit, one.plain, one.stolen = 1 << 30, "a", 100 << 20
        _, found = outcomes.outcomes([*plain, *little], USUAL)
        self.assertAlmostEqual(found.removed, 0.5)
        self.assertEqual(found.disturbed, [])
        self.assertIn("1024 MiB; up to 100 MiB taken back", outcomes.report([found], USUAL))

    def test_turns_come_in_their_order_and_with_what_they_need(self) -> None:
        self.assertEqual(outcomes.turns("later,first, model-first,cold"), ["cold", "model-first", "first", "later"])
        for wrong in ("hot", "", "warm", "later", "cold,later"):
            with self.assertRaises(ValueError, msg=wrong):
                outcomes.turns(wrong)

    def test_phases_add_up_to_the_whole(self) -> None:
        parts = outcomes.phases(10.0, MOMENTS, 17.0)
        self.assertEqual(parts, [1.0, 2.0, 3.0, 0.5, 0.5])
        self.assertEqual(len(parts), len(outcomes.PHASES))
        self.assertEqual(outcomes.phases(10.0, {}, 17.0), [])
        rounds = [one for at in (9, 7, 8) for one in some("a", cold=at)]
        for one in rounds:
            one.phases = [one.seconds - 4, 1, 1, 1, 1]
        (found,) = outcomes.outcomes(rounds, ["cold"])
        self.assertEqual((sum(found.phases["cold"]), found.times["cold"]), (8, 8))
        self.assertIn("8.00", outcomes.phases_report([found], ["cold"]).splitlines()[-1])
        found.phases["cold"] = []
        self.assertEqual(outcomes.phases_report([found], ["cold"]), "")

    def test_counters_are_reported_as_medians_per_turn(self) -> None:
        rounds = [one for _ in range(3) for one in some("a", cold=30, later=12)]
        for at, one in enumerate(rounds):
            one.major = 1000 * (at % 2) + at
            one.ahead = 0.25 if one.turn == "later" else None
        (found,) = outcomes.outcomes(rounds, ["cold", "later"])
        self.assertEqual(found.major, {"cold": 2, "later": 1003})
        self.assertEqual(found.ahead, {"later": 0.25})
        last = outcomes.counts_report([found], ["cold", "later"]).splitlines()[-1]
        self.assertEqual(last.split(), ["a", "2", "1003", outcomes.table.NONE, "25%"])

    def test_rows_are_marked_whose_pages_did_not_stay(self) -> None:
        calm, taken = some("a", cold=3, warm=1), some("b", cold=3, warm=1)
        taken[0].stolen = outcomes.LARGE + 1
        taken[1].device = 24 << 20
        found = outcomes.outcomes([*calm, *taken], ["cold", "warm"])
        self.assertEqual([len(one.disturbed) for one in found], [0, 2])
        text = outcomes.report(found, ["cold", "warm"])
        self.assertIn("b *", text)
        self.assertNotIn("a *", text)
        self.assertIn("b, warm: 24 MiB from the disk", text)

    def test_a_start_is_wrong_with_other_bytes_and_a_later_one_without_help(self) -> None:
        cold, first, later = some("a", cold=3, first=3, later=2)
        self.assertEqual([outcomes.faults(one, "d") for one in (cold, first, later)], [[], [], []])
        self.assertIn("and not other", outcomes.faults(cold, "other")[0])
        later.loaded = first.loaded = 0
        self.assertEqual(outcomes.faults(first, "d"), [])
        self.assertEqual(outcomes.faults(later, "d"), ["nothing was loaded ahead of it"])
        later.limit = 1 << 20
        self.assertEqual(outcomes.faults(later, "d"), [])


class OneStart(unittest.TestCase):
    tools = onestart.Tools(Path("/p/ppcctl"), Path("/s"))
    subject = onestart.Subject("a", ["python", "load"], folder=Path("/m"))

    def test_only_ours_are_wrapped_and_in_a_store_of_their_own(self) -> None:
        words = {turn: onestart.command(self.subject, turn, self.tools) for turn in outcomes.TURNS}
        self.assertEqual(words["cold"], ["python", "load"])
        self.assertEqual(words["warm"], words["cold"])
        ours = ["/p/ppcctl", "--json", "run", "--set", "store=/s"]
        self.assertEqual(words["first"], [*ours, "--", "python", "load"])
        self.assertEqual(words["later"], words["first"])
        self.assertEqual(words["model-first"], [*ours, "/m", "--", "python", "load"])

    def test_a_command_becomes_what_has_joined_its_group(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            made = mock_group(Path(scratch))
            words = onestart.grouped(["sh", "-c", "echo $$; exit 3"], made)
            done = subprocess.run(words, capture_output=True, text=True)
            joined = (made.path / "cgroup.procs").read_text()
        self.assertEqual((done.returncode, done.stdout), (3, joined))
        self.assertEqual(onestart.grouped(["a"], None), ["a"])

    def judged(self, turn: str, code: int, out: str, err: str, **about: int) -> Start:
        one = Start("a", turn, **about)
        onestart.judge(one, subprocess.CompletedProcess([], code, out, err), (10.0, 17.0))
        return one

    def test_program_output_is_recorded(self) -> None:
        cold = self.judged("cold", 0, '{"digest": "d"}', "")
        self.assertEqual((cold.broken, cold.digest, cold.phases), ("", "d", []))
        self.assertIn("exit status 1: last", self.judged("cold", 1, "", "first\nlast").broken)
        self.assertIn("nothing was said", self.judged("cold", 0, "{}", "").broken)
        later = self.judged("later", 0, '{"digest": "d"}', '{"policy": "maio", "stats": {"loaded_bytes": 7}}')
        self.assertEqual((later.broken, later.loaded, later.ahead), ("", 7, None))
        self.assertEqual(self.judged("cold", 0, '{"digest": "d", "ahead": 0.5}', "").ahead, 0.5)
        self.assertIn("it ran with None", self.judged("later", 0, '{"digest": "d"}', "").broken)

    def test_kill_at_memory_limit_suggests_a_larger_share(self) -> None:
        for code in (-9, 137):
            self.assertIn("larger share", self.judged("cold", code, "", "", limit=1000).broken)
        self.assertIn("exit status -9", self.judged("cold", -9, "", "").broken)


def mock_group(folder: Path) -> group.Group:
    made = group.Group.__new__(group.Group)
    made.root, made.path = group.V1, folder
    return made


class Memory(unittest.TestCase):
    def test_both_versions_tell_what_is_charged(self) -> None:
        v1 = "cache 1\nrss 2\nrss_huge 9\ntotal_cache 10\ntotal_rss 20\ntotal_rss_huge 90\n"
        self.assertEqual(group.charged(v1, group.V1), (10, 20))
        self.assertEqual(group.charged("anon 20\nfile 10\nfile_mapped 5\n", group.V2), (10, 20))
        self.assertEqual(group.charged("", group.V2), (0, 0))

    def test_the_most_of_either_counts(self) -> None:
        taken = group.Taken()
        taken.note(10, 1)
        taken.note(5, 7)
        self.assertEqual(taken.all, 17)

    def test_a_share_is_in_percent(self) -> None:
        self.assertAlmostEqual(group.share("45%"), 0.45)
        for wrong in ("45", "0%", "much", "300%", "%"):
            with self.assertRaises(ValueError, msg=wrong):
                group.share(wrong)

    def test_pages_that_are_taken_back_are_counted_in_bytes(self) -> None:
        before = reclaim.parse("nr_free_pages 1\npgsteal_file 2\nworkingset_refault_file 1\n")
        after = reclaim.parse("pgsteal_file 5\nworkingset_refault_file 2\n")
        page = reclaim.mmap.PAGESIZE
        self.assertEqual(after.since(before), reclaim.Reclaimed(3 * page, page))
        self.assertEqual(reclaim.parse(""), reclaim.Reclaimed())

    def test_bytes_paged_out_by_damon_are_counted(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for number, action in enumerate(("pageout", "stat")):
                scheme = Path(folder) / f"0/contexts/0/schemes/{number}"
                (scheme / "stats").mkdir(parents=True)
                (scheme / "action").write_text(f"{action}\n")
                (scheme / "stats/sz_applied").write_text("4096\n")
            (Path(folder) / "0/state").write_text("on\n")
            self.assertEqual(reclaim.paged_out(Path(folder)), 4096)
            (Path(folder) / "0/state").write_text("off\n")
            self.assertEqual(reclaim.paged_out(Path(folder)), 0)


class HostMemory(unittest.TestCase):
    def test_the_host_takes_memory_again_afterwards(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            order = Path(folder) / "order"
            with hostmemory.kept(order, 1 << 20):
                self.assertFalse(order.exists(), "there is no such host")
            order.write_text("9\n")
            with self.assertRaises(KeyError), hostmemory.kept(order, 1 << 20):
                self.assertEqual(order.read_text(), "11")
                raise KeyError
            self.assertEqual(order.read_text(), "9")


class Arguments(unittest.TestCase):
    def wrong(self, *words: str) -> str:
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
            starts.arguments(list(words))
        return said.getvalue()

    def test_usual_is_the_ssd_with_all_memory(self) -> None:
        wanted = starts.arguments([])
        self.assertEqual((wanted.device, wanted.memory, wanted.turns), (["ssd"], [], USUAL))
        wanted = starts.arguments(["--device", "20ms", "--memory", "45%", "--turns", "cold,model-first"])
        self.assertEqual((wanted.device, wanted.memory, wanted.turns), (["20ms"], ["45%"], ["cold", "model-first"]))

    def test_invalid_arguments_are_reported(self) -> None:
        self.assertIn("'hot' is not a turn", self.wrong("--turns", "hot"))
        self.assertIn("45 is not a share", self.wrong("--memory", "45"))
        self.assertIn("choose one", self.wrong("--disk", "/srv", "--device", "ssd"))
        self.assertIn("add cold", self.wrong("--memory", "45%", "--turns", "first,later"))
        self.assertIn("invalid choice", self.wrong("--program", "game"))

    def test_rows_say_what_is_not_usual(self) -> None:
        self.assertEqual(starts.row_name("a", "ssd", starts.ALL, many=False), "a")
        self.assertEqual(starts.row_name("a", "4ms", "45%", many=True), "a, 4ms, 45%")

    def test_device_is_described_in_words(self) -> None:
        told = disk.told({"bandwidth": 1_000_000_000, "latency_us": 4000, "slots": 64})
        self.assertEqual(told, "1000 MB/s, 4 ms a request, 64 at a time")

    def test_every_client_uses_a_supported_weight_format(self) -> None:
        self.assertLessEqual({client.weights for client in loaders.CLIENTS}, {"safetensors", "bin", "gguf"})


class Ground(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def test_an_interpreter_reads_its_library_from_where_it_was_laid_out(self) -> None:
        made, laid = self.folder / "made", self.folder / "laid"
        laid.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
        before = (made / "pyvenv.cfg").read_text()
        ground.lay_out_python(made, laid)
        ground.settle(laid)
        words = [str(laid / "venv/bin/python"), "-c", "import json, os, sys; print(os.__file__, sys.prefix)"]
        told = {**os.environ, "LD_LIBRARY_PATH": str(laid / "base/lib")}
        library, prefix = subprocess.run(words, env=told, capture_output=True, text=True, check=True).stdout.split()
        self.assertTrue(Path(library).is_relative_to(laid / "base"), library)
        self.assertEqual(Path(prefix), laid / "venv")
        self.assertEqual((made / "pyvenv.cfg").read_text(), before)

    def test_copied_file_keeps_its_modification_time(self) -> None:
        source, target = self.folder / "a.py", self.folder / "b.py"
        source.write_text("pass")
        os.utime(source, (1, 1))
        with mock.patch.object(os, "link", side_effect=OSError):
            ground.link(str(source), str(target))
        self.assertEqual(target.stat().st_mtime, 1)

    def test_a_client_is_started_from_there(self) -> None:
        client = loaders.Client("c", lambda *_: {}, (), weights="gguf", environment={"A": "1"})
        self.assertEqual(ground.words(client, Path("/d"))[1:], ["/d/loaders/loaders.py", "c", "/d/gguf/model.gguf"])
        self.assertEqual(ground.told(client, Path("/d"))["A"], "1")
        for name in ground.LOADERS:
            self.assertTrue((Path(ground.__file__).parent / name).is_file(), name)


SAID = (
    "gcc\tinstalled\t, cpp (>= 4), gcc-12:any (>= 12) | gcc-11\t\n"
    "gcc-12\tinstalled\tlibc6 (>= 2.3), awk\tc-compiler\n"
    "cpp\tinstalled\t\t\n"
    "libc6\tinstalled\tlibgone | libc-bin\t\n"
    "libc-bin\tinstalled\t\t\n"
    "mawk\tinstalled\tlibc6\t awk (= 1)\n"
    "gcc-11\tconfig-files\t\t\n"
    "other\tinstalled\t\t\n"
)


class Programs(unittest.TestCase):
    def test_packages_bring_what_they_depend_on(self) -> None:
        expected = ["cpp", "gcc", "gcc-12", "libc-bin", "libc6", "mawk"]
        self.assertEqual(packages.closure(SAID, ["gcc"]), expected)
        self.assertEqual(packages.closure(SAID, ["gcc-11", "nowhere"]), [])

    def test_missing_program_names_the_packages_to_install(self) -> None:
        browser, compiler = (programs.Program(name, names, "", lambda _: "") for name, names in
                             (("browser", ("chromium",)), ("compiler", ("gcc", "libc6"))))
        self.assertEqual(programs.missing(compiler, SAID), "")
        self.assertIn("chromium", programs.missing(browser, SAID))
        self.assertIn("gcc-11", programs.missing(programs.Program("c", ("gcc-11",), "", lambda _: ""), SAID))

    def test_files_keep_their_place_and_are_no_links_to_the_machines_own(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            there, root = Path(scratch) / "there", Path(scratch) / "root"
            there.mkdir()
            root.mkdir()
            (there / "file").write_text("text")
            (there / "link").symlink_to("file")
            for name in ("file", "link", "gone", "file"):
                packages.put(str(there / name), root)
            inner = root / str(there).lstrip("/")
            self.assertEqual({path.name for path in inner.iterdir()}, {"file", "link"})
            self.assertTrue((inner / "link").is_symlink())
            self.assertNotEqual((inner / "file").stat().st_ino, (there / "file").stat().st_ino)

    def test_documents_are_left_out(self) -> None:
        for path, left_out in (("/usr/share/doc/gcc/x", True), ("/usr/share/manual", False), ("/usr/share/man", True)):
            self.assertEqual(bool(packages.LEFT_OUT.search(path)), left_out, path)

    def test_sources_are_the_same_each_time_and_include_one_another(self) -> None:
        made = programs.sources(3)
        self.assertEqual(made, programs.sources(3))
        self.assertEqual(set(made), {"all.h", "main.c", "part0.c", "part1.c", "part2.c"})
        self.assertNotEqual(made["part0.c"], made["part1.c"])

    def test_each_program_script_prints_a_digest(self) -> None:
        for program in programs.PROGRAMS:
            self.assertIn('{"digest": "%s"}', program.script)
        words = programs.words(Path("/r"), "true", "postgres")
        self.assertEqual(words[:3], ["chroot", "--userspec=postgres:postgres", "/r"])


class OnGpus(unittest.TestCase):
    def test_a_model_is_about_as_large_as_wanted(self) -> None:
        for gigabytes in (1, 8, 12):
            tensors = weights.tensors(gpu_start.shape(gigabytes))
            size = sum(math.prod(dims) * weights.WIDTH for _, dims in tensors)
            self.assertAlmostEqual(size / 1e9, gigabytes, delta=0.3)

    def test_major_faults_are_those_of_the_program(self) -> None:
        one = Start("row", outcomes.LATER, major=470)
        told = '{"digest": "d"}'
        summary = '{"policy": "maio", "stats": {"loaded_bytes": 5}, "major_faults": 3}'
        onestart.judge(one, subprocess.CompletedProcess([], 0, told, summary), (0.0, 1.0))
        self.assertEqual((one.broken, one.major, one.loaded), ("", 3, 5))


if __name__ == "__main__":
    unittest.main()
