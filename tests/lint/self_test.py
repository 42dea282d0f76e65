"""Checks that each lint finds its faults, and none in a correct tree."""
import pathlib
import sys
import tempfile
import unittest

import documented
import environment
import formatting
import headers
import layers
import ported_names
import shell
import versions
import words

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "packaging" / "site"))
import links  # noqa: E402

GOOD = {
    ".clang-format": "BasedOnStyle: Google\nIncludeBlocks: Preserve\n",
    "meson.build": "project('tutti', 'cpp',\n  version : '1.2.3')\n",
    "CHANGELOG.md": "# Changes\n\n## 1.2.3\n\n## 1.2.2\n",
    "meson_options.txt": "option('tool', type : 'feature')\n",
    "tools/packaging/recipes/a/package.py": 'version("1.2.3")\nargs = ["-Dtool=enabled"]\n',
    "tools/packaging/recipes/b/vcpkg.json": '{\n  "version": "1.2.3"\n}\n',
    "include/tutti/work.hpp": "#pragma once\n\n#include <memory>\n\n#include <tutti/error.hpp>\n/// A call.\nclass Work;\n/// A function.\nvoid thing();\n",
    "include/tutti/error.hpp": "#pragma once\n",
    "include/tutti/backend/backend.hpp": "#pragma once\n\n#include <tutti/work.hpp>\n",
    "lib/core/values/meson.build": "# Values.\n",
    "lib/core/values/error.cpp": "#include <tutti/error.hpp>\n",
    "lib/core/values/fail.hpp": "#pragma once\n\n#include <tutti/error.hpp>\n",
    "lib/core/backend/backend.cpp": "#include <tutti/backend/backend.hpp>\n",
    "lib/core/backend/work.cpp": '#include <tutti/work.hpp>\n\n#include <fmt/format.h>\n\n#include "values/fail.hpp"\n',
    "lib/core/group/core.hpp": '#pragma once\n\n#include "group/call.hpp"\n',
    "lib/core/group/call.hpp": "#pragma once\n",
    "lib/core/store/table.hpp": "#pragma once\n",
    "lib/core/rows/rows.hpp": "#pragma once\n",
    "lib/core/values/log.cpp": 'const char* level() { return std::getenv("TUTTI_LOG"); }\n',
    "backends/one/one.hpp": "#pragma once\n",
    "backends/one/one.cpp": '#include "one/one.hpp"\n\n#include "values/fail.hpp"\n',
    "backends/two/two.cpp": "#include <gloo/context.h>\n",
    "tests/conformance/verbs_test.cpp": "#include <tutti/work.hpp>\n",
    "tools/bench/plan.hpp": "#pragma once\n",
    "tools/start": "#!/usr/bin/env bash\necho \"$1\"\n",
    "docs/coming-from.md": "| There | Here | What differs |\n|---|---|---|\n| `ncclThing` | `Work::thing` | |\n| `MPI_X` | none | |\n",
    "docs/environment.md": "| Variable | Meaning |\n|---|---|\n| `TUTTI_LOG` | How much is logged |\n",
}

# Lint, file, its text, and the expected message.
BAD = [
    (layers, "include/tutti/work.hpp", '#pragma once\n#include "values/fail.hpp"\n', "included as <tutti/...>"),
    (layers, "include/tutti/work.hpp", "#pragma once\n#include <fmt/format.h>\n", "only the standard library"),
    (layers, "include/tutti/work.hpp", "#pragma once\n#include <mpi.h>\n", "only the standard library"),
    (layers, "include/tutti/error.hpp", "#pragma once\n#include <tutti/work.hpp>\n", "backend/, which is above it"),
    (layers, "include/tutti/work.hpp", "#pragma once\n#include <tutti/adapters/dlpack.hpp>\n", "adapter"),
    (layers, "include/tutti/work.hpp", "#pragma once\n#include <tutti/backend/backend.hpp>\n", "users see no SPI"),
    (layers, "include/tutti/adapters/one.hpp", "#pragma once\n#include <tutti/backend/backend.hpp>\n", "users see no SPI"),
    (layers, "include/tutti/new.hpp", "#pragma once\n#include <memory>\n", "no folder of lib/"),
    (layers, "lib/core/values/error.cpp", "#include <tutti/work.hpp>\n", "backend/, which is above it"),
    (layers, "lib/core/backend/work.cpp", '#include "group/call.hpp"\n', "group/, which is above it"),
    (layers, "lib/core/values/error.cpp", '#include "group/call.hpp"\n', "group/, which is above it"),
    (layers, "lib/core/kernels/reduce.cpp", '#include "store/table.hpp"\n', "store/, which stands beside it"),
    (layers, "lib/core/internal/fail.hpp", "#pragma once\n", "no place in the order"),
    (layers, "lib/core/fail.cpp", "", "lies in one of its folders"),
    (layers, "lib/core/group/call.hpp", '#pragma once\n#include "group/core.hpp"\n', "a cycle of includes: lib/core/group/call, lib/core/group/core"),
    (layers, "lib/core/group/call.cpp", "int x;\n" * 401, "warning: lib/core/group/call.cpp: 401 lines"),
    (layers, {f"lib/core/values/v{n}.cpp": "" for n in range(14)}, "", "warning: lib/core/values/: 16 sources"),
    (layers, "lib/core/values/meson.build", "lib_sources += []\n", "what lives here"),
    (layers, "lib/core/store/store.cpp", "#  include <gloo/context.h>\n", "names no backend"),
    (layers, "lib/core/store/store.cpp", '#include "two/two.hpp"\n', "names no backend"),
    (layers, "lib/core/kernels/kernels.hpp", "#pragma once\n#include <cuda_runtime.h>\n", "names no backend"),
    (layers, "backends/two/two.cpp", '#include "one/one.hpp"\n', "no other backend"),
    (layers, "backends/two/two.cpp", '#include "../one/one.hpp"\n', "no other backend"),
    (layers, "backends/two/two.cpp", '#include "group/call.hpp"\n', "a backend uses lib/ up to"),
    (layers, "backends/two/two.cpp", '#include "rows/rows.hpp"\n', "a backend uses lib/ up to"),
    (layers, "tests/conformance/verbs_test.cpp", '#include "values/fail.hpp"\n', "public API only"),
    (layers, "docs/examples/one.cpp", '#include "values/fail.hpp"\n', "public API only"),
    (layers, "tools/main.cpp", '#include "values/fail.hpp"\n', "public API only"),
    (layers, "tools/common/text.cpp", '#include "bench/plan.hpp"\n', "bench/, which is above it"),
    (layers, "lib/training/losses/focal.cpp", "#include <tutti/work.hpp>\n", "sees a group"),
    (layers, "lib/training/losses/focal.cpp", '#include "group/core.hpp"\n', "not in SEAM"),
    (headers, "include/tutti/work.hpp", "#include <memory>\n", "pragma once"),
    (headers, "lib/core/values/fail.hpp", "int fail();\n", "pragma once"),
    (headers, "include/tutti/work.hpp", "#pragma once\n# define TUTTI_API\n", "no macro"),
    (headers, "include/tutti/work.hpp", "#pragma once\nusing namespace std;\n", "opens no namespace"),
    (headers, "include/tutti/work.hpp", "#pragma once\n" + "int x();\n" * 130, "warning: include/tutti/work.hpp: 131 lines"),
    *[(documented, "include/tutti/work.hpp", f"#pragma once\n{code}\n", f"include/tutti/work.hpp:2: {name} has no comment") for code, name in [
        ("void thing();", "thing"),
        ("struct Work {};", "Work"),
        ("struct Work { int field; };  ///< A call.", "Work::field"),
        ("enum class Kind { one, two };", "Kind"),
        ("using Kind = int;", "Kind"),
        ("void thing(int); void other();  ///< One of two.", "thing"),
    ]],
    (documented, "include/tutti/work.h", "#define WORK 1\n", "WORK has no comment"),
    (documented, "include/tutti/work.hpp", "#pragma once\n/// See \\ref other.\nvoid thing();\n", "unable to resolve reference"),
    (words, "lib/core/backend/work.cpp", "// TO" "DO: later\n", "finish it"),
    (words, "docs/use.md", "Go to /ro" "ot/tutti.\n", "one machine"),
    (words, "docs/use.md", "cd /wo" "rk/main && make\n", "one machine"),
    (words, "docs/use.md", "ninja -C /tmp/bu" "ild-1\n", "one machine"),
    (words, "docs/use.md", "It printed @N" "@.\n", "filled in"),
    *[(words, "lib/core/backend/work.cpp", f"{code}\n", say) for code, say in [
        ("struct Tro" "uble {};", "say transport error"),
        ("Hang" "ups up;", "say connection watcher"),
        ("void gre" "et();", "say handshake"),
        ("bool may_gre" "et();", "say handshake"),
        ("struct Gre" "eting {};", "say handshake"),
        ("int kn" "ocks_;", "say handshake"),
        ("int oldest_str" "anger;", "say unauthenticated peer"),
        ("struct Ca" "rd {};", "say peer info"),
        ("const Of" "fer& mine();", "say request"),
        ("struct Announce" "ment {};", "say metadata exchange"),
        ("int sa" "id = 1;", "say output"),
        ("class Kee" "per;", "say orphan reaper"),
        ("Meet" "ing met(2);", "say barrier"),
        ("int se" "ats_;", "say rank assignment"),
        ("struct Ver" "dict {};", "say result"),
        ("TEST(Store, DelaysNo" "bodyElse) {}", "say a rank, a peer"),
        ("bool waits_for_every" "body();", "say a rank, a peer"),
        ("bool some" "body;", "say a rank, a peer"),
        ("bool any" "body;", "say a rank, a peer"),
        ("int who" "ever;", "say a rank, a peer"),
        ("bool comes_al" "ong();", "say inlined, blocked"),
        ("bool stands_st" "ill();", "say inlined, blocked"),
        ("void let_g" "o();", "say inlined, blocked"),
        ("struct Pla" "ce {};", "say what it is"),
        ("struct QuantilePla" "ce {};", "say what it is"),
        ("class Val" "ue {};", "say MaybeOwned"),
        ("/// As order(str" "eam).\nvoid order(str" "eam);", "say block_stream(stream)"),
        ("// Of a hang-" "up.", "say ended connection"),
        ("// It gre" "ets the server.", "say handshake"),
        ("// A peer kn" "ocks.", "say handshake"),
        ("/// A str" "anger connects.", "say unauthenticated peer"),
        ('fail("the ver' 'dict is late");', "say result"),
        ("// A meet" "ing of ranks.", "say barrier"),
        ('fail("the streams do not stand st' 'ill");', "say does not run"),
        ("// It lets g" "o of the lock.", "say release"),
        ("// Calls the r" "oll.", "say collect status"),
        ("// The rows come al" "ong.", "say inlined"),
        ("// No" "body waits.", "say a rank, a peer"),
        ("// For who" "ever waits.", "say a rank, a peer"),
        ("/// By wh" "at it is multiplied.", "its subject first"),
    ]],
    (words, "docs/use.md", "The rows travel al" "ong.\n", "say inlined"),
    (words, "lib/core/group/meet" "ing.cpp", "", "in its path: say barrier"),
    (ported_names, "include/tutti/work.hpp", "#pragma once\n\n#include <memory>\nclass Work {};\n", "called thing"),
    (ported_names, "include/tutti/error.hpp", "#pragma once\nclass Work {\n  int other;\n};\nint thing();\n", "Work has no thing"),
    (ported_names, "docs/coming-from.md", "| `MPI_X` | perhaps | |\n", "no name, and not none"),
    (versions, "CHANGELOG.md", "# Changes\n\n## 1.2.2\n", "is 1.2.2, meson.build says 1.2.3"),
    (versions, "CHANGELOG.md", "# Changes\n", "no heading"),
    (versions, "tools/packaging/debian/changelog", "tutti (1.2.2-1) unstable\n", "its newest version is 1.2.2"),
    (versions, "tools/packaging/recipes/a/package.py", 'version("1.2.2")\n', "says version 1.2.2"),
    (versions, "tools/packaging/recipes/a/package.py", 'args = "-Dtools=enabled"\n', "option tools is not"),
    (versions, "tools/packaging/recipes/a/package.py", "def\n", "is not valid"),
    (versions, "tools/packaging/recipes/b/vcpkg.json", "{\n", "is not valid"),
    (environment, "lib/core/launch/init.cpp", 'auto r = read("TUTTI_NEW");\n', "TUTTI_NEW is not in the table"),
    (environment, "lib/core/launch/init.cpp", 'auto r = getenv("HOME");\n', "HOME is not in the table"),
    (environment, "python/tutti/new.py", 'os.environ.get("TUTTI_LESS")\n', "TUTTI_LESS is not in the table"),
    (environment, "tools/start", "#!/bin/sh\necho ${TUTTI_MORE:-1}\n", "TUTTI_MORE is not in the table"),
    (environment, "lib/core/launch/unknown_variables.cpp", '"LOG", "LOK"', "TUTTI_LOK is not in both"),
    (environment, "lib/core/values/log.cpp", "int x;\n", "TUTTI_LOG is in the table, but nothing reads it"),
    (formatting, "lib/core/backend/work.cpp", "int   x;\n", "run clang-format-14 -i lib/core/backend/work.cpp"),
    (formatting, "docs/tool.md", "a word " * 20 + "\n", "docs/tool.md:1: 140 columns"),
    (shell, "tools/start", "#!/usr/bin/env bash\nrm $1\n", "tools/start:2"),
]


# Names that need no comment, and comments of C.
COMMENTED = """#pragma once
/// A call.
class Work {
 public:
  Work(int);
  ~Work();
  Work& operator=(const Work&);
  void wait();  ///< Waits.
  void wait(int);
  friend class Other;
 private:
  struct State { int value; };
  int state_;
};
/// A kind.
enum class Kind { one, two };
namespace tutti::detail { void hidden(); }
"""
COMMENTED_C = """/** @file
   A header. */
#define VALUE 1 /**< One. */
/** A struct. */
typedef struct thing {
  int size; /**< Its size. */
} thing;
"""

# Words that are no fault.
ALLOWED = """// The values come in place; a message has room for 4 words. It offers what the card of the network can.
const auto request = value(in_place, still); void keep(int discard);
"""


# A page of a site, and what is said of it.
LINKS = [
    ('<a href="other.html#end">', []),
    ('<a href="https://example.org/"><p id="here"><a href=#here><a href="#here">', []),
    ('<a href="none.html">', ["page.html: none.html leads nowhere"]),
    ('<img src="none.png">', ["page.html: none.png leads nowhere"]),
    ('<a href="other.html#none">', ["page.html: other.html#none has no such anchor"]),
    ('<a href="#none">', ["page.html: #none has no such anchor"]),
    ('<script src="https://example.org/x.js"></script>', ["page.html: https://example.org/x.js is loaded from another host"]),
    ('<link rel="stylesheet" href="//example.org/x.css">', ["page.html: //example.org/x.css is loaded from another host"]),
]


class SelfTest(unittest.TestCase):
    def check(self, lint, changes):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            for name, text in {**GOOD, **changes}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            try:
                return lint.check(root)
            except SystemExit:
                self.skipTest(f"{lint.__name__} has not its program")

    def test_finds_nothing_in_a_tree_without_fault(self):
        for lint in (documented, environment, formatting, headers, layers, ported_names, shell, versions, words):
            with self.subTest(lint=lint.__name__):
                self.assertEqual(self.check(lint, {}), [])

    def test_asks_for_no_comment_that_says_nothing(self):
        self.assertEqual(self.check(documented, {"include/tutti/work.hpp": COMMENTED, "include/tutti/c/work.h": COMMENTED_C}), [])

    def test_leaves_ordinary_words_alone(self):
        self.assertEqual(self.check(words, {"lib/core/backend/work.cpp": ALLOWED, "tests/data/old.md": "A str" "anger.\n"}), [])

    def test_finds_links_that_lead_nowhere(self):
        for text, says in LINKS:
            with self.subTest(text), tempfile.TemporaryDirectory() as folder:
                (pathlib.Path(folder) / "page.html").write_text(text)
                (pathlib.Path(folder) / "other.html").write_text('<h2 id="end">The end</h2>')
                self.assertEqual(list(links.check(pathlib.Path(folder).resolve())), says)

    def test_finds_each_fault_once(self):
        for lint, name, text, says in BAD:
            with self.subTest(lint=lint.__name__, file=name, says=says):
                problems = self.check(lint, name if isinstance(name, dict) else {name: text})
                self.assertEqual(len(problems), 1, problems)
                self.assertIn(says, problems[0])


if __name__ == "__main__":
    unittest.main()
