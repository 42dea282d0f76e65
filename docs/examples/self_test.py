"""Tests that the checks of the documents find faults."""
import pathlib
import tempfile
import unittest

import check_docs
import check_output

OUTPUT = "# Say\n\n<!-- output: say one two -->\n```\n{}```\n"

SOURCE = "int a;\n\nint b;\nint c;\n"
PAGE = {
    "good": ("<!-- code: lib/x.cpp -->\n```cpp\nint b;\nint c;\n```\n\n<!-- all of: lib/x.cpp -->\n```cpp\nint a;\n```\n"
             "Then\n\n<!-- all of: lib/x.cpp -->\n```cpp\nint b;\nint c;\n```\n"
             "# A heading, here\n[file](../lib/x.cpp) [heading](#a-heading-here) `lib/x.cpp` `lib/` `std/else`\n", None),
    "code": ("<!-- code: lib/x.cpp -->\n```cpp\nint a;\nint c;\n```\n", "has not the lines: int a;"),
    "half a line": ("<!-- code: lib/x.cpp -->\n```cpp\na;\n```\n", "has not the lines: a;"),
    "no file": ("<!-- code: lib/y.cpp -->\n```cpp\nint a;\n```\n", "lib/y.cpp, which does not exist"),
    "a missing end": ("<!-- all of: lib/x.cpp -->\n```cpp\nint a;\nint b;\n```\n", "'int c;', quoted is ''"),
    "too much": ("<!-- all of: lib/x.cpp -->\n```cpp\nint a;\nint b;\nint c;\nint d;\n```\n", "quoted is 'int d;'"),
    "link": ("[x](nowhere.md)\n", "nowhere.md, which does not exist"),
    "anchor": ("# Here\n[x](#there)\n", "no such heading"),
    "way": ("<!-- way -->\n1. `lib/a.cpp`\n2. `lib/b.cpp`\nNot passed: `lib/c.cpp`\n<!-- end -->\n", None),
    "a source is left out": ("<!-- way -->\n1. `lib/a.cpp`\n2. `lib/b.cpp`\n<!-- end -->\n", "header of lib/c.cpp, which is not on"),
    "a source that nothing reaches": ("<!-- way -->\n1. `lib/a.cpp`\n2. `lib/b.cpp`\n3. `lib/x.cpp`\n"
                                      "Not passed: `lib/c.cpp`\n<!-- end -->\n", "lib/x.cpp: no other source"),
    "path": ("See `lib/nothing.hpp`.\n", "lib/nothing.hpp, which does not exist"),
}


class SelfTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def output(self, shown, program="#!/bin/sh\necho $1; echo $2\n"):
        say = self.write("say", program)
        say.chmod(0o755)
        return check_output.check(self.write("page.md", shown), [str(say)])

    def test_output_is_what_the_program_prints(self):
        self.assertEqual(self.output(OUTPUT.format("one\ntwo\n")), ([], OUTPUT.format("one\ntwo\n")))
        problems, right = self.output(OUTPUT.format("one\nthree\n"))
        self.assertIn("+two", problems)
        self.assertEqual(right, OUTPUT.format("one\ntwo\n"))

    def test_lines_of_ranks_are_shown_in_the_order_of_the_ranks(self):
        shown = OUTPUT.format("[2] a\n[2] b\n[10] c\n")
        self.assertEqual(self.output(shown, "#!/bin/sh\necho '[10] c'; echo '[2] a'; echo '[2] b'\n"), ([], shown))
        self.assertIn("+no rank", self.output(shown, "#!/bin/sh\necho '[10] c'; echo no rank\n")[0])

    def test_an_argument_that_names_a_program_is_its_path(self):
        self.assertIn(str(self.root / "say"), self.output("<!-- output: say say two -->\n```\n```\n")[1])

    def test_output_counts_only_of_a_program_that_is_shown_and_succeeds_quietly(self):
        good = OUTPUT.format("one\ntwo\n")
        self.assertIn("shows no output of say", self.output("# Say\n")[0][0])
        self.assertIn("not one of the programs", self.output(good.replace("say one", "tell one"))[0][0])
        self.assertIn("status 3", self.output(good, "#!/bin/sh\necho one; echo two; exit 3\n")[0][0])
        self.assertIn("stderr: x", self.output(good, "#!/bin/sh\necho one; echo two; echo x >&2\n")[0][0])

    def test_a_command_that_lacks_something_skips_the_check(self):
        with self.assertRaisesRegex(check_output.Skipped, "no x here"):
            self.output(OUTPUT.format("one\ntwo\n"), "#!/bin/sh\necho no x here >&2; exit 77\n")

    def test_docs_find_each_fault_once(self):
        for file, text in {"x.cpp": SOURCE, "a.cpp": '#include "b.hpp"\n', "b.cpp": '#include "b.hpp"\n#include "c.hpp"\n',
                           "b.hpp": "", "c.hpp": "", "c.cpp": '#include "c.hpp"\n'}.items():
            self.write("lib/" + file, text)
        for name, (text, says) in PAGE.items():
            with self.subTest(name):
                problems = check_docs.check(self.root, self.write("docs/page.md", text))
                self.assertEqual(len(problems), 0 if says is None else 1, problems)
                if says:
                    self.assertIn(says, problems[0])


if __name__ == "__main__":
    unittest.main()
