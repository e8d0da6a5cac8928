"""The chart and the manifests of tools/kubernetes, as far as that needs no network: `make kubernetes-test` does the rest."""

import re
import shutil
import subprocess
import unittest
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
FOLDER = TREE / "tools/kubernetes"
MANIFESTS = (FOLDER / "ppc.yaml").read_text()


class Chart(unittest.TestCase):
    def test_the_chart_has_the_version_of_the_tree(self) -> None:
        version = re.search(r'^version = "(.*)"$', (TREE / "Cargo.toml").read_text(), re.MULTILINE)[1]
        chart = (FOLDER / "ppc/Chart.yaml").read_text()
        self.assertIn(f"\nversion: {version}\nappVersion: {version}\n", chart)
        self.assertIn(f'image: "ppc:{version}"', MANIFESTS)

    def test_the_plain_manifests_are_what_the_chart_renders(self) -> None:
        if not shutil.which("helm"):
            self.skipTest("helm is not installed")
        words = ["helm", "template", "ppc", str(FOLDER / "ppc")]
        rendered = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        self.assertEqual(rendered.rstrip(), MANIFESTS.rstrip())

    def test_the_capabilities_are_those_that_the_readme_gives_reasons_for(self) -> None:
        readme = (TREE / "cprt/README.md").read_text()
        section = readme.partition("### In containers")[2].partition("\n## ")[0]
        added = re.search(r"add:\n((?:\s+(?:#.*|- \w+)\n)+)", MANIFESTS)[1]
        for capability in re.findall(r"- (\w+)", added):
            self.assertIn(f"`{capability}`", section)
        self.assertIn("drop: [ALL]", MANIFESTS)
        self.assertNotIn("privileged", MANIFESTS)

    def test_manifests_need_no_access_to_the_kubernetes_api(self) -> None:
        kinds = re.findall(r"^kind: (\w+)$", MANIFESTS, re.MULTILINE)
        self.assertEqual(kinds, ["ConfigMap", "DaemonSet"])
        self.assertIn("automountServiceAccountToken: false", MANIFESTS)


if __name__ == "__main__":
    unittest.main()
