"""Checks that results.py counts reported cases, and at least one failure for a broken program."""
import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import results

CASES = """
  <testsuite name="tutti.tutti:unit / numbers.Sum">
    <testcase name="Adds" status="run"/>
    <testcase name="Wraps" status="run">{fault}</testcase>
    <testcase name="Later" status="notrun"/>
  </testsuite>
  <testsuite name="tutti.tutti:unit / numbers.Product"><testcase name="Multiplies" status="run"/></testsuite>
  <testsuite name="tutti.tutti:unit / numbers of others"><testcase name="Adds" status="run"/></testsuite>"""


class ResultsTest(unittest.TestCase):
    def count(self, programs, cases="", suffix="", again=()):
        with tempfile.TemporaryDirectory() as folder:
            base = pathlib.Path(folder, "check")
            if programs is not None:
                log = [json.dumps({"name": name, "result": result}) for name, result in programs]
                pathlib.Path(f"{base}{suffix}.json").write_text("\n".join(log))
                pathlib.Path(f"{base}{suffix}.junit.xml").write_text(f"<testsuites>{cases}</testsuites>")
            if again:
                log = [json.dumps({"name": name, "result": result}) for name, result in again]
                pathlib.Path(folder, "again.json").write_text("\n".join(log))
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                status = results.main([str(base)])
        return output.getvalue().splitlines()[-1], status

    def test_counts_the_cases_of_a_program(self):
        self.assertEqual(self.count([("tutti:unit / numbers", "OK")], CASES.format(fault="")),
                         ("3 passed, 0 failed", 0))

    def test_finds_the_logs_of_a_run_with_a_setup_or_a_wrapper(self):
        self.assertEqual(self.count([("tutti:unit / numbers", "OK")], CASES.format(fault=""), "-quick"),
                         ("3 passed, 0 failed", 0))

    def test_counts_a_program_without_cases_once(self):
        self.assertEqual(self.count([("tutti:lint / words", "OK"), ("tutti:lint / shell", "SKIP")]),
                         ("1 passed, 0 failed", 0))

    def test_counts_failed_cases(self):
        self.assertEqual(self.count([("tutti:unit / numbers", "FAIL")], CASES.format(fault="<failure/>")),
                         ("2 passed, 1 failed", 1))

    def test_counts_a_program_that_broke_after_good_cases_as_a_failure(self):
        self.assertEqual(self.count([("tutti:unit / numbers", "TIMEOUT")], CASES.format(fault="")),
                         ("3 passed, 1 failed", 1))

    def test_counts_what_passed_when_run_again(self):
        programs = [("tutti:unit / numbers", "FAIL"), ("tutti:lint / words", "FAIL")]
        cases = CASES.format(fault="<failure/>")
        self.assertEqual(self.count(programs, cases, again=[("tutti:unit / numbers", "OK")]), ("3 passed, 1 failed", 1))
        self.assertEqual(self.count(programs, cases, again=[(name, "OK") for name, _ in programs]), ("4 passed, 0 failed", 0))
        self.assertEqual(self.count(programs[:1], cases, again=[("tutti:unit / numbers", "FAIL")]), ("2 passed, 1 failed", 1))

    def test_names_failed_programs_for_meson(self):
        with tempfile.TemporaryDirectory() as folder:
            log = [json.dumps({"name": name, "result": result}) for name, result in
                   [("tutti:unit+nccl / sums, rows", "FAIL"), ("unit - tutti:of ucx:shm", "TIMEOUT"), ("tutti:unit / c", "OK")]]
            pathlib.Path(folder, "check.json").write_text("\n".join(log))
            self.assertEqual(results.failed(str(pathlib.Path(folder, "check"))), ["tutti:sums, rows", "tutti:of ucx:shm"])

    def test_counts_a_run_without_results_as_a_failure(self):
        self.assertEqual(self.count(None), ("0 passed, 1 failed", 1))
        self.assertEqual(self.count([("tutti:lint / shell", "SKIP")]), ("0 passed, 1 failed", 1))


if __name__ == "__main__":
    unittest.main()
