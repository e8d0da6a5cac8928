"""Loads by torch that continue to a GPU: from files in the page cache, through pinned memory, without changing a byte.

    python3 -m unittest discover -s tests/gpu -p "gpu_*.py"

Without torch or a GPU each test is skipped, and says why.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

try:
    import torch
except ImportError:
    torch = None

MIB = 1 << 20


def why_not() -> str | None:
    """Why the tests cannot run here; None if they can."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver (libcuda.so.1)"
    if torch is None:
        return "no torch in this Python; 'make clients' has one"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    return None


WHY_NOT = why_not()


class WhyNotTest(unittest.TestCase):
    """Each requirement that may be missing is reported by name, and nothing if none is missing."""

    def told(self, driver: bool, torch_here: bool, gpu: bool) -> str | None:
        library = mock.Mock() if driver else mock.Mock(side_effect=OSError)
        fake = mock.Mock() if torch_here else None
        if fake is not None:
            fake.cuda.is_available.return_value = gpu
        with mock.patch.object(ctypes, "CDLL", library), mock.patch.object(sys.modules[__name__], "torch", fake):
            return why_not()

    def test_missing_requirement_is_reported(self) -> None:
        self.assertIn("libcuda.so.1", self.told(driver=False, torch_here=True, gpu=True))
        self.assertIn("no torch", self.told(driver=True, torch_here=False, gpu=True))
        self.assertIn("no GPU", self.told(driver=True, torch_here=True, gpu=False))

    def test_no_reason_is_reported_if_nothing_is_missing(self) -> None:
        self.assertIsNone(self.told(driver=True, torch_here=True, gpu=True))


@unittest.skipIf(WHY_NOT is not None, WHY_NOT)
class TorchTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(dir=Path(__file__).parent.parent.parent / "target")
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "weights.bin"
        torch.manual_seed(1)
        self.bytes = torch.randint(0, 256, (64 * MIB + 4321,), dtype=torch.uint8)
        self.path.write_bytes(self.bytes.numpy().tobytes())
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def mapped(self) -> torch.Tensor:
        return torch.from_file(str(self.path), shared=False, size=self.bytes.numel(), dtype=torch.uint8)

    def test_mapped_tensor_is_copied_to_the_gpu(self) -> None:
        there = self.mapped().to("cuda:0")
        self.assertTrue(torch.equal(there.cpu(), self.bytes))

    def test_pinned_tensor_is_copied_asynchronously(self) -> None:
        pinned = self.mapped().pin_memory()
        there = pinned.to("cuda:0", non_blocking=True)
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(there.cpu(), self.bytes))

    def test_tensors_of_safetensors_get_there(self) -> None:
        try:
            from safetensors.torch import load_file, save_file
        except ImportError:
            self.skipTest("no safetensors in this Python; 'make clients' has one")
        path = self.path.with_suffix(".safetensors")
        save_file({"a": self.bytes[: 32 * MIB].clone(), "b": self.bytes[32 * MIB :].clone()}, path)
        there = load_file(path, device="cuda:0")
        self.assertTrue(torch.equal(torch.cat([there["a"], there["b"]]).cpu(), self.bytes))


if __name__ == "__main__":
    unittest.main()
