"""The real clients without their frameworks: the model, the faults of a run, the counts and the tables."""

import contextlib
import io
import json
import os
import struct
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent / "clients"))

import clients  # noqa: E402
import cold  # noqa: E402
import digest  # noqa: E402
import environment  # noqa: E402
import gguf  # noqa: E402
import loaders  # noqa: E402
import runs  # noqa: E402
import table  # noqa: E402
import verdict  # noqa: E402
import weights  # noqa: E402

SMALL = weights.Shape(layers=11, hidden=16, inner=24, heads=4, shared=2, words=32, shard=6000)
TRUTH = verdict.Truth("d", 1000, exact=True)
STATS = {"loaded_bytes": 900}


def sound(way: str, **changed) -> runs.Run:
    run = runs.Run("c", way, {"digest": "d", "bytes": 1000, "seconds": 1.5}, device=1000, template=True)
    if way not in (runs.NATIVE, runs.OWN):
        run.summary = {"backend": way.split()[0], "policy": "maio", "fault": None, "stats": STATS}
    for name, value in changed.items():
        setattr(run, name, value)
    return run


class Weights(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name) / "model"
        self.size = weights.write(self.folder, SMALL, 1)

    def test_they_are_the_same_for_the_same_seed_and_no_other(self) -> None:
        told = weights.truth(self.folder)
        weights.write(self.folder, SMALL, 2)
        self.assertNotEqual(weights.truth(self.folder), told)
        weights.write(self.folder, SMALL, 1)
        self.assertEqual(weights.truth(self.folder), told)

    def test_index_lists_every_tensor_file_and_total_size(self) -> None:
        index = json.loads((self.folder / weights.INDEX).read_text())
        found = {name: len(data) for name, _, _, data in weights.read(self.folder)}
        self.assertEqual(set(index["weight_map"]), set(found))
        self.assertEqual(sum(found.values()), self.size)
        self.assertEqual(index["metadata"]["total_size"], self.size)
        files = {path.name for path in self.folder.glob("*.safetensors")}
        self.assertEqual(set(index["weight_map"].values()), files)
        self.assertGreater(len(files), 1)

    def test_one_flipped_bit_is_found_and_flipped_back(self) -> None:
        told = weights.truth(self.folder)
        path = max(self.folder.glob("*.safetensors"), key=lambda file: file.stat().st_size)
        weights.flip(path)
        self.assertNotEqual(weights.truth(self.folder), told)
        weights.flip(path)
        self.assertEqual(weights.truth(self.folder), told)

    def test_files_leave_the_page_cache(self) -> None:
        path = max(self.folder.iterdir(), key=lambda file: file.stat().st_size)
        with path.open("rb") as file:
            file.read()
            # A tmpfs cannot drop pages.
            if cold.resident(file.fileno()) and os.statvfs(path).f_blocks:
                with contextlib.suppress(OSError):
                    cold.drop(self.folder)
                    self.assertEqual(cold.resident(file.fileno()), 0)


class Gguf(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.shape = weights.Shape(layers=2, hidden=16, inner=24, heads=4, shared=2, words=300)
        self.size = gguf.write(Path(scratch.name), self.shape, 1)
        self.data = (Path(scratch.name) / gguf.NAME).read_bytes()

    def test_its_tensors_are_those_of_the_shape(self) -> None:
        _, version, tensors, _ = struct.unpack_from("<4sIQQ", self.data)
        names = [gguf.name(theirs) for theirs, _ in weights.tensors(self.shape)]
        self.assertEqual((version, tensors), (3, len(names)))
        self.assertEqual(len(set(names)), len(names))
        for name in ("token_embd.weight", "blk.1.ffn_down.weight", "output.weight"):
            self.assertIn(name, names)
            self.assertIn(name.encode(), self.data)
        sizes = [gguf.kind_and_size(dims)[1] for _, dims in weights.tensors(self.shape)]
        whole = len(gguf.header(self.shape)) + sum(size + gguf.padding(size) for size in sizes)
        self.assertEqual((self.size, len(self.data)), (whole, whole))
        self.assertEqual(len(gguf.header(self.shape)) % gguf.ALIGNED, 0)

    def test_one_can_compute_with_its_weights(self) -> None:
        # The last tensor is the head, of bfloat16.
        size = 300 * 16 * 2
        end = len(self.data) - gguf.padding(size)
        upper = self.data[end - size + 1 : end : 2]
        self.assertEqual(set(upper), {0x3C, 0xBC})

    def test_a_vocabulary_has_a_kind_for_each_token(self) -> None:
        tokens, kinds = gguf.vocabulary(300)
        self.assertEqual((len(tokens), len(kinds), len(set(tokens))), (300, 300, 300))
        self.assertEqual(kinds[-1], gguf.NORMAL)


class Digest(unittest.TestCase):
    def test_digest_covers_everything_but_tensor_order(self) -> None:
        one, other = ("a", "BF16", (2,), b"abcd"), ("b", "BF16", (1,), b"ef")
        told = digest.of([one, other])
        self.assertEqual(digest.of([other, one]), told)
        changed = [("c", *one[1:]), ("a", "F16", *one[2:]), ("a", "BF16", (2, 1), b"abcd"), (*one[:3], b"abce")]
        for tensor in changed:
            self.assertNotEqual(digest.of([tensor, other]), told, tensor)


class Loading(unittest.TestCase):
    def test_shards_are_in_the_order_of_their_numbers(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            for name in ("m-10.safetensors", "m-9.safetensors", "m-9.bin"):
                (Path(scratch) / name).touch()
            names = [path.name for path in loaders.shards(Path(scratch))]
        self.assertEqual(names, ["m-9.safetensors", "m-10.safetensors"])

    def test_client_names_are_unique_and_torch_is_not_imported(self) -> None:
        names = [client.name for client in loaders.CLIENTS]
        self.assertEqual(len(set(names)), len(names))
        self.assertNotIn("torch", sys.modules)

    def test_workers_share_out_rows_or_columns(self) -> None:
        self.assertEqual(loaders.axis("model.layers.0.self_attn.o_proj.weight"), 1)
        self.assertEqual(loaders.axis("model.layers.0.mlp.up_proj.weight"), 0)


class Starting(unittest.TestCase):
    place = runs.Place(Path("/v/python"), Path("/t/ppcctl"), Path("/s"))
    client = loaders.Client("c", lambda *_: {}, (), environment={"A": "1"}, own_environment={"B": "2"})

    def test_each_way_has_its_command_line(self) -> None:
        words = {way.title: runs.command(self.client, way, Path("/m"), self.place) for way in runs.WAYS}
        self.assertEqual(words["native"][0], "/v/python")
        self.assertEqual(words["native"][2:], ["c", "/m"])
        self.assertEqual(words["own"], [*words["native"], "--own"])
        first = words["fuse first"]
        self.assertEqual(first, words["fuse again"])
        self.assertEqual(first[:5], ["/t/ppcctl", "--json", "run", "--backend", "fuse"])
        self.assertIn("store=/s/c-fuse", first)
        self.assertEqual(first[first.index("--") + 1 :], words["native"])

    def test_its_own_prefetching_is_switched_on_for_itself_only(self) -> None:
        native, own = (runs.environment(self.client, runs.Way(name)) for name in (runs.NATIVE, runs.OWN))
        self.assertEqual((native.get("A"), native.get("B")), ("1", None))
        self.assertEqual((own["A"], own["B"]), ("1", "2"))

    def test_failed_client_is_reported_with_its_last_words(self) -> None:
        for text, broken in (("exit(3)", "exit status 3"), ("print('no JSON')", "exit status 0")):
            words = [sys.executable, "-c", f"import sys; print('last words', file=sys.stderr); {text}"]
            with mock.patch.object(runs, "command", return_value=words):
                run = runs.run(self.client, runs.WAYS[0], Path("/m"), self.place)
            self.assertEqual(run.broken, f"{broken}: last words")

    def test_missing_backend_is_distinguished_from_a_failure(self) -> None:
        said = "exit status 125: ppcctl: No backend works here (fuse: why)"
        self.assertEqual(runs.not_here(runs.Run("c", "w", broken=said)), "No backend works here (fuse: why)")
        self.assertEqual(runs.not_here(runs.Run("c", "w", broken="exit status 1: else")), "")

    def test_the_last_json_counts(self) -> None:
        self.assertEqual(runs.last_json('noise\n{"a": 1}\n{"b": 2}\n{broken\nnoise'), {"b": 2})
        self.assertEqual(runs.last_json("nothing"), {})


class Judging(unittest.TestCase):
    def assert_fault(self, text: str, run: runs.Run, direct: bool = False) -> None:
        self.assertIn(text, "; ".join(verdict.faults(run, TRUTH, direct)))

    def test_sound_runs_have_no_faults(self) -> None:
        for way in ("native", "own", "observe first", "fuse again"):
            self.assertEqual(verdict.faults(sound(way), TRUTH, direct=False), [], way)

    def test_other_bytes_do_not(self) -> None:
        told = {"digest": "e", "bytes": 1000}
        self.assert_fault("not those of the files", sound("native", told=told))
        self.assert_fault("999 bytes of 1000", sound("fuse first", told={"digest": "d", "bytes": 999}))
        self.assert_fault("exit status 1", sound("native", broken="exit status 1"))

    def test_cached_start_is_a_fault_if_device_reads_are_exact(self) -> None:
        self.assert_fault("not cold", sound("native", device=900))
        unknown = verdict.Truth("d", 1000, exact=False)
        self.assertEqual(verdict.faults(sound("native", device=0), unknown, direct=False), [])

    def test_maio_has_to_have_done_its_part(self) -> None:
        summary = sound("fuse first").summary
        for text, changed in (
            ("loaded_bytes", {"stats": {"loaded_bytes": 100}}),
            ("the policy failed: it", {"fault": "it"}),
            ("maio on observe", {"backend": "observe"}),
            ("None on fuse", {"policy": None}),
            ("maio on fuse", {"stats": None}),
        ):
            self.assert_fault(text, sound("fuse first", summary={**summary, **changed}))
        self.assert_fault("no template, and left", sound("fuse first", template=False))

    def test_maio_has_to_stand_aside_for_direct_reads(self) -> None:
        summary = sound("observe again").summary
        aside = {**summary, "stats": {"loaded_bytes": 0}}
        run = sound("observe again", summary=aside, template=False)
        self.assertEqual(verdict.faults(run, TRUTH, direct=True), [])
        self.assert_fault("bypass the page cache", sound("observe again"), direct=True)
        self.assertEqual(verdict.faults(sound("observe first"), TRUTH, direct=True), [], "nothing is known of them")


class Counting(unittest.TestCase):
    def test_each_run_and_each_skipped_client_is_counted_once(self) -> None:
        tally, said = clients.Tally(), io.StringIO()
        with contextlib.redirect_stdout(said):
            tally.note("a", [])
            tally.note("b", ["one", "two"])
            tally.skip("c", "why")
            tally.skip("c", "why")
        self.assertEqual(str(tally), "1 passed, 1 failed, 1 skipped")
        self.assertEqual(said.getvalue(), "fail  b: one\nfail  b: two\nskipped: clients::c: why\n")

    def test_without_their_packages_clients_are_skipped(self) -> None:
        said = io.StringIO()
        with (
            mock.patch.object(environment, "ensure", side_effect=environment.Missing("no network")),
            contextlib.redirect_stdout(said),
        ):
            self.assertEqual(clients.main([]), 0)
        last = said.getvalue().splitlines()[-1]
        compared = [client for client in loaders.CLIENTS if not client.answers]
        self.assertEqual(last, f"0 passed, 0 failed, {len(compared)} skipped")

    def test_one_package_takes_only_its_clients_along(self) -> None:
        tally = clients.Tally()
        with contextlib.redirect_stdout(io.StringIO()):
            left = clients.able(loaders.CLIENTS, {"fastsafetensors": "no wheel"}, tally)
        self.assertEqual(tally.skipped, 2)
        self.assertEqual(len(left), len(loaders.CLIENTS) - 2)
        self.assertEqual(set(tally.reasons.values()), {"no wheel"})

    def test_an_interpreter_of_another_version_is_none(self) -> None:
        self.assertTrue(environment.runs_as(Path(sys.executable), sys.version))
        self.assertFalse(environment.runs_as(Path(sys.executable), "3.9 or so"))
        self.assertFalse(environment.runs_as(Path("/nowhere/python"), sys.version))

    def test_requirements_are_pinned(self) -> None:
        packages = environment.wanted(environment.REQUIREMENTS.read_text())
        self.assertGreater(len(packages), 10)
        for package in packages:
            self.assertRegex(package, r"^[A-Za-z0-9_.-]+==[0-9.]+$")


class Showing(unittest.TestCase):
    def test_medians_are_in_their_place(self) -> None:
        done = [sound("native"), sound("native"), sound("fuse first")]
        done[1].told = {**done[1].told, "seconds": 2.5}
        done[1].whole = 3.0
        text = table.grid("seconds", done, ["native", "own", "fuse first"], table.seconds)
        self.assertEqual(text, "seconds  native  fuse first\nc          2.00        1.50")
        self.assertEqual(table.whole(done[:2]), "1.50")
        self.assertIn("1.00", table.grid("bytes", done, ["native"], table.device(1000)))
        self.assertEqual(table.loaded(1000)(done), "0.90")
        self.assertEqual(table.loaded(1000)(done[:1]), table.NONE)

    def test_broken_runs_are_left_out_of_the_table(self) -> None:
        done = [sound("native"), sound("own", broken="it broke")]
        self.assertEqual(table.grid("s", done, ["native", "own"], table.seconds), "s  native\nc    1.50")


if __name__ == "__main__":
    unittest.main()
