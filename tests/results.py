"""Counts the results of `meson test` runs and ends with one line, "N passed, M failed".

Each argument is the --logbase of a run: BASE.json has a line per program, BASE.junit.xml the cases
of programs that report cases. Meson names the files BASE-NAME after a test setup or wrapper. A run
without results counts as a failure, so that a broken build does not pass.

Failed programs may have been run again, alone, with logs named `again` beside those of BASE. Tests
that passed there count as passed, and are listed. `--failed BASE` prints their names."""
import collections
import glob
import json
import pathlib
import re
import sys
import xml.etree.ElementTree


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None or case.get("status") == "notrun" else "passed"


def programs_of(base):
    """Returns a list of (name, result) for one run."""
    lines = [line for log in glob.glob(glob.escape(base) + "*.json") for line in pathlib.Path(log).read_text().splitlines()]
    return [(program["name"], program["result"]) for program in map(json.loads, lines)]


def failed(base):
    """The names for `meson test`: Meson reports "project:suite / name", since 1.7 "suite - project:name"."""
    return [re.sub(r"^(?:.* - )?([^:]*):(?:[^:]* / )?", r"\1:", name) for name, result in programs_of(base)
            if result not in ("OK", "EXPECTEDFAIL", "SKIP")]


def count(base):
    """The outcomes of one run. A failed program counts at least once, whatever its cases report."""
    again = dict(programs_of(str(pathlib.Path(base).with_name("again"))))
    reports = glob.glob(glob.escape(base) + "*.junit.xml")
    suites = [suite for report in reports for suite in xml.etree.ElementTree.parse(report).iter("testsuite")]
    total = collections.Counter()
    for name, result in programs_of(base):
        # The report calls the suites of the program NAME "project.NAME[.more]".
        mine = re.compile(rf"[^.]+\.{re.escape(name)}(\.|$)")
        cases = collections.Counter(outcome(case) for suite in suites if mine.match(suite.get("name"))
                                    for case in suite.iter("testcase"))
        if result == "SKIP":
            cases = {"skipped": 1}
            print(f"skipped: {name}")
        elif result in ("OK", "EXPECTEDFAIL"):
            cases = cases or {"passed": 1}
        elif again.get(name) == "OK":
            cases = collections.Counter({"passed": max(cases["passed"] + cases["failed"], 1), "skipped": cases["skipped"]})
            print(f"passed when run again, alone: {name} ({result.lower()} beside others)")
        else:
            cases["failed"] = max(cases["failed"], 1)
            print(f"failed: {name} ({result.lower()})")
        total.update(cases)
    if not total["passed"] + total["failed"]:
        print(f"failed: no test ran, see {base}.txt")
        total["failed"] += 1
    return total


def main(bases):
    total = collections.Counter()
    for base in bases:
        total += count(base)
    print(f"{total['passed']} passed, {total['failed']} failed")
    return 0 if total["passed"] and not total["failed"] else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--failed"]:
        for name in failed(sys.argv[2]):
            print(name)
        sys.exit()
    sys.exit(main(sys.argv[1:]))
