#!/usr/bin/env python3
"""Runs a part of the conformance suite over a deliberately broken backend. The suite must run to
its end and fail. At least one failing case must be one that was written to find this fault, by an
assertion and not by a crash or a hang. With the mutant "none", which breaks nothing, it must pass."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile


def run(program, mutant, cases, seconds):
    """The exit status and the parsed report of one run."""
    with tempfile.TemporaryDirectory() as directory:
        report = os.path.join(directory, "report.json")
        environment = dict(os.environ, TUTTI_TEST_MUTANT=mutant)
        command = [program, "--gtest_filter=" + cases, "--gtest_output=json:" + report,
                   "--gtest_brief=1"]
        try:
            done = subprocess.run(command, env=environment, timeout=seconds,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except subprocess.TimeoutExpired:
            sys.exit(f"{mutant}: the suite did not end within {seconds} s")
        if not os.path.exists(report):
            sys.exit(f"{mutant}: the suite ended with status {done.returncode} and without a "
                     f"report:\n{done.stdout[-4000:]}")
        with open(report, encoding="utf-8") as file:
            return done, json.load(file)


def failures_of(report):
    """Names of the failing cases, each with the texts of its failures."""
    found = {}
    for suite in report["testsuites"]:
        for case in suite["testsuite"]:
            if "failures" in case:
                name = suite["name"] + "." + case["name"]
                found[name] = [failure["failure"] for failure in case["failures"]]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the conformance suite")
    parser.add_argument("mutant", help="a name from tests/support/mutants.cpp")
    parser.add_argument("cases", help="what to run, as --gtest_filter wants it")
    parser.add_argument("--noticed-by", metavar="PATTERN",
                        help="a regular expression for a failure that has to be among them, as "
                             "'name of the case: text of the failure'")
    parser.add_argument("--seconds", type=int, default=60)
    arguments = parser.parse_args()

    done, report = run(arguments.program, arguments.mutant, arguments.cases, arguments.seconds)
    failures = failures_of(report)
    print(f"{arguments.mutant}: {report['tests']} cases, {len(failures)} fail")
    if report["tests"] == 0:
        sys.exit("no case was run")
    if arguments.mutant == "none":
        if done.returncode != 0 or failures:
            sys.exit(f"the suite fails over a backend that is not broken:\n{done.stdout[-4000:]}")
        return
    if done.returncode != 1 or not failures:
        sys.exit(f"the suite did not notice: exit status {done.returncode}\n{done.stdout[-4000:]}")
    if arguments.noticed_by is not None:
        wanted = re.compile(arguments.noticed_by, re.DOTALL)
        for name, texts in failures.items():
            for text in texts:
                if wanted.search(f"{name}: {text}"):
                    print(f"noticed by {name}:\n{text}")
                    return
        sys.exit(f"no failure matches '{arguments.noticed_by}':\n{done.stdout[-4000:]}")


if __name__ == "__main__":
    main()
