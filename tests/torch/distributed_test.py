"""PyTorch's own test_distributed suite, as it ships in the wheel, over the backend "tutti" or torch's gloo.

usage: distributed_test.py --backend tutti|gloo [--ranks 2] [--expect FILE] [PATTERN...]

Ranks are forked. --expect: a file with lines "ranks test  reason" of tests that are known to fail; then a new failure
and a mended one are both errors. A line whose reason begins with "before torch 2.N:" is for those versions alone.
--all-to-all lets the tests run that torch runs over MPI alone; --sub-groups those for which it wants 8 ranks. Prints a
line for each test that did not pass, and a summary."""
import argparse
import fnmatch
import os
import re
import sys
import tempfile
import unittest


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["tutti", "gloo"], default="tutti")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--expect")
    parser.add_argument("--all-to-all", action="store_true")
    parser.add_argument("--sub-groups", action="store_true")
    parser.add_argument("patterns", nargs="*")
    return parser.parse_args()


class Named(str):
    """The backend's name, which also equals gloo's: the tests compare it to choose what applies."""

    def __eq__(self, other):
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


def load(options):
    """torch's module of tests. It reads the environment when it is imported, and decides then which tests apply."""
    folder = tempfile.mkdtemp()
    for name in ("barrier", "test_dir"):
        os.makedirs(os.path.join(folder, name))
    decorated = "mpi" if options.all_to_all or options.sub_groups else "gloo"
    os.environ.update(TEMP_DIR=folder, WORLD_SIZE=str(options.ranks), BACKEND=decorated,
                      INIT_METHOD="env://", MASTER_ADDR="127.0.0.1")
    if options.backend == "tutti":
        import tutti  # noqa: F401  pylint: disable=unused-import,import-outside-toplevel
    try:
        from torch.testing._internal.distributed import distributed_test  # pylint: disable=import-outside-toplevel
    except ModuleNotFoundError as missing:  # The wheel does not bring what its tests import.
        print(f"skipped: {missing}")
        sys.exit(77)
    distributed_test.BACKEND = Named("tutti") if options.backend == "tutti" else "gloo"
    os.environ["BACKEND"] = "mpi" if decorated == "mpi" else distributed_test.BACKEND
    return distributed_test


def test_class(module):
    import torch  # pylint: disable=import-outside-toplevel

    class Test(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def _current_test_name(self):
            return self._testMethodName

    Test.__module__, Test.__qualname__ = "__main__", "Test"
    return Test


class Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.passed, self.failed, self.skipped_tests = [], {}, []

    def addSuccess(self, test):
        self.passed.append(test._testMethodName)

    def addFailure(self, test, err):
        lines = [line.strip() for line in str(err[1]).splitlines()]
        causes = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Failure)\b", line)]
        self.failed[test._testMethodName] = (causes or lines or ["?"])[-1]
        print(f"FAIL {test._testMethodName}: {self.failed[test._testMethodName][:300]}", flush=True)

    addError = addFailure

    def addSkip(self, test, reason):
        self.skipped_tests.append(test._testMethodName)


def expected(path, ranks):
    import torch  # pylint: disable=import-outside-toplevel
    minor = int(torch.__version__.split(".")[1])
    with open(path, encoding="utf-8") as file:
        fields = [line.split(None, 2) for line in file if line.strip() and not line.startswith("#")]
    known = set()
    for number, test, reason in fields:
        before = re.match(r"before torch 2\.(\d+):", reason)
        if int(number) == ranks and (before is None or minor < int(before[1])):
            known.add(test)
    return known


def main():
    options = arguments()
    module = load(options)
    globals()["Test"] = test = test_class(module)
    names = unittest.TestLoader().getTestCaseNames(test)
    if options.patterns:
        names = [n for n in names if any(fnmatch.fnmatch(n, p) for p in options.patterns)]
    result = Result()
    unittest.TestSuite(test(n) for n in names).run(result)
    print(f"{options.backend}, {options.ranks} ranks: {len(result.passed)} passed, {len(result.failed)} failed, "
          f"{len(result.skipped_tests)} do not apply")
    if not options.expect:
        return len(result.failed) > 0 or not result.passed
    known = expected(options.expect, options.ranks) & set(names)
    for name in sorted(set(result.failed) - known):
        print(f"a new failure: {name}")
    for name in sorted(known & set(result.passed)):
        print(f"passes now, so remove it from {options.expect}: {name}")
    return set(result.failed) != known or not result.passed


if __name__ == "__main__":
    sys.exit(main())
