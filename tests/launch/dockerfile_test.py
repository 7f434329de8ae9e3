#!/usr/bin/env python3
"""Checks that the options, presets, targets and variables of the Dockerfile exist, and that the image has the files
that its steps read.

    python3 tests/launch/dockerfile_test.py BUILD      # BUILD is the build folder of a configured preset
"""

import fnmatch
import json
import pathlib
import re
import subprocess
import sys
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path()


def output_of(*command):
    return subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout


class DockerfileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
        cls.steps = re.sub(r"(?m)^#.*\n", "", text).replace("\\\n", " ")
        # The comment at the top of the file has the commands for both images.
        cls.presets = sorted({*re.findall(r"ARG PRESET=(\w+)", cls.steps), *re.findall(r"--build-arg PRESET=(\w+)", text)})

    def test_options_of_setup(self):
        self.assertIn("launch/setup --${PRESET}", self.steps)
        usage = output_of("launch/setup", "--help")
        for preset in self.presets:
            self.assertRegex(usage, rf"(?m)^\s+--{preset}\s")

    def test_presets_and_their_build_folders(self):
        presets = json.loads((REPOSITORY / "CMakePresets.json").read_text(encoding="utf-8"))
        self.assertEqual(self.presets, ["cpu", "cuda"])
        for kind in ("configurePresets", "buildPresets"):
            self.assertLessEqual(set(self.presets), {preset["name"] for preset in presets[kind]})
        self.assertIn("cmake --install build/${PRESET}", self.steps)
        base = next(preset for preset in presets["configurePresets"] if preset["name"] == "base")
        self.assertEqual(base["binaryDir"], "${sourceDir}/build/${presetName}")

    def test_variables_and_targets_of_cmake(self):
        cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
        variables = re.findall(r"-D(\w+)=", self.steps)
        self.assertTrue(variables)
        for variable in variables:
            self.assertRegex(cache, rf"(?m)^{variable}:")
        targets = re.findall(r"--target (\w+)", self.steps)
        self.assertTrue(targets)
        for target in targets:
            self.assertTrue((BUILD / "build.ninja").read_text(encoding="utf-8").count(f"\nbuild {target}: phony "), target)

    def test_the_image_has_all_files_of_the_repository(self):
        patterns = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").split()
        for name in output_of("git", "ls-files").splitlines():
            parts = pathlib.PurePosixPath(name).parts
            for i in range(1, len(parts) + 1):
                for pattern in patterns:
                    self.assertFalse(fnmatch.fnmatch("/".join(parts[:i]), pattern), f"{name} is ignored by {pattern}")

    def test_the_entry_is_installed(self):
        self.assertIn('ENTRYPOINT ["halflife"]', self.steps)
        self.assertIn("--prefix /usr/local", self.steps)  # /usr/local/bin is in PATH
        self.assertIn(".venv", output_of("cat", ".dockerignore").split())  # setup creates it in the image

    # Names of packages differ between releases, so this tests only the release of this machine.
    def test_packages_of_setup(self):
        script = (REPOSITORY / "launch/setup").read_text(encoding="utf-8")
        packages = re.search(r"build_packages=\(([^)]*)\)", script)[1].split()
        self.assertGreater(len(packages), 15)
        try:
            known = set(output_of("apt-cache", "pkgnames").split())
        except (FileNotFoundError, subprocess.CalledProcessError):
            known = set()
        if "libc6" not in known:
            self.skipTest("apt has no list of packages")
        installable = output_of("apt-cache", "policy", *packages)
        for package in packages:
            found = re.search(rf"(?m)^{re.escape(package)}:\n.*\n  Candidate: (.*)$", installable)
            self.assertTrue(found and found[1] != "(none)", package)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv[1]).resolve()
    unittest.main(argv=sys.argv[:1])
