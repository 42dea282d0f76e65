"""Prints the files that the tests of some suites need, for a build without the tests.

Arguments: the build folder and the options of `meson test`, of which --suite and --no-suite count."""
import json
import os
import subprocess
import sys


def introspect(folder, what):
    return json.loads(subprocess.run(["meson", "introspect", folder, what], check=True, stdout=subprocess.PIPE).stdout)


def main(folder, *options):
    given = list(zip(options, options[1:]))
    wanted, unwanted = ({value for option, value in given if option == name} for name in ("--suite", "--no-suite"))
    suites = [(test, {suite.partition(":")[2] for suite in test["suite"]}) for test in introspect(folder, "--tests")]
    needed = {target for test, own in suites if own & wanted and not own & unwanted for target in test["depends"]}
    files = {file for target in introspect(folder, "--targets") if target["id"] in needed for file in target["filename"]}
    print("\n".join(sorted(os.path.relpath(file, folder) for file in files)))


main(os.path.abspath(sys.argv[1]), *sys.argv[2:])
