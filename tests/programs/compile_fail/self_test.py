"""Checks that run.py distinguishes a case that compiles, or fails for another reason, from one that
fails as expected."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

RUN = pathlib.Path(__file__).with_name("run.py")
SOURCE = """\
struct [[nodiscard]] Result {};
Result result();
void use() {
#ifdef DROPPED  // error: nodiscard
  result();
#else
  (void)result();
#endif
#ifdef COMPILES  // error: nodiscard
  (void)result();
#else
#endif
#ifdef OTHER_REASON  // error: nodiscard
  int text = "";
#else
#endif
#ifdef OTHER_PLACE  // error: nodiscard
  result();
#else
#endif
#ifdef OTHER_PLACE
  int text = "";
#endif
}
"""


class SelfTest(unittest.TestCase):
    def run_over(self, text):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "cases.cpp")
            source.write_text(text)
            command = [sys.executable, "-B", str(RUN), str(source), *compiler]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [line for line in output.splitlines() if not line.startswith("#")]

    def test_tells_the_cases_apart(self):
        self.assertEqual(self.run_over(SOURCE), [
            "1..5", "ok 1 - as it stands", "ok 2 - DROPPED", "not ok 3 - COMPILES", "not ok 4 - OTHER_REASON",
            "not ok 5 - OTHER_PLACE"])

    def test_wants_a_file_that_compiles_as_it_stands(self):
        self.assertEqual(self.run_over(SOURCE + "int x = y;\n")[1], "not ok 1 - as it stands")

    def test_wants_at_least_one_case(self):
        self.assertEqual(self.run_over("int x;\n"), ["1..1", "not ok 1 - as it stands"])


if __name__ == "__main__":
    compiler = sys.argv[1:]
    unittest.main(argv=sys.argv[:1])
