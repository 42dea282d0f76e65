"""Checks that abi.py and verbs.py find what would break programs, and what has no C function."""
import contextlib
import io
import pathlib
import sys
import tempfile

import abi
import verbs

HEADER = """typedef int32_t tutti_status;
enum { TUTTI_OK = 0, TUTTI_BAD = 1 };
typedef struct tutti_box {
  size_t size;
  int32_t a, b;
} tutti_box;
tutti_status tutti_open(const char* name, tutti_box* box);
"""


def problems_of(before, after, exported):
    """What abi.py says of the header `after` when the list was made of `before`."""
    symbols = [f"symbol {name}@@TUTTI_C_1" for name in exported]
    gone, new = abi.differences(after, abi.of_headers(before)[0] + symbols, abi.of_headers(after)[0] + symbols)
    return gone, new


def verbs_says(header, c_header, reasons):
    with tempfile.TemporaryDirectory() as folder:
        include = pathlib.Path(folder)
        (include / "c").mkdir()
        (include / "c/tutti.h").write_text(c_header)
        (include / "gather.hpp").write_text(header)
        (include / "reasons").write_text(reasons)
        (include / "test.c").write_text("tutti_gather();")
        verbs.CLASSES, verbs.FREE = {}, ["gather.hpp"]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            verbs.main(include, include / "reasons", [include / "test.c"])
        return out.getvalue()


def main():
    assert problems_of(HEADER, HEADER, ["tutti_open"]) == ([], [])
    for change in (("const char* name", "char* name"), ("TUTTI_BAD = 1", "TUTTI_BAD = 2")):
        gone, new = problems_of(HEADER, HEADER.replace(*change), ["tutti_open"])
        assert len(gone) == 1 and len(new) == 1, (change, gone, new)
    grown = HEADER + "tutti_status tutti_close(tutti_box* box);\n"
    assert problems_of(HEADER, grown, ["tutti_open", "tutti_close"])[1] == ["function tutti_status tutti_close(tutti_box* box)"]
    assert problems_of(HEADER, grown, ["tutti_open"])[0] == ["in the header, but not exported: tutti_close"]
    assert problems_of(HEADER, HEADER, ["tutti_open", "tutti_x"])[0] == ["exported, but not in the header: tutti_x"]
    assert abi.of_headers(HEADER)[1] == {"tutti_box": [("size", "size_t size"), ("a", "int32_t a, b"), ("b", "int32_t a, b")]}

    cpp = "namespace [[gnu::visibility(\"default\")]] tutti {\nvoid gather(int a);\nWork gather_async(int a);\nint fresh();\n}\n"
    c = "tutti_status tutti_gather(int a);\n"
    assert "no C function, and no reason: fresh\n" in verbs_says(cpp, c, "")
    assert "gather_async" not in verbs_says(cpp, c, "")
    assert "no C function" not in verbs_says(cpp, c, "fresh: only in C++ so far\n")
    assert "has a C function, or is in no header: gather\n" in verbs_says(cpp, c, "gather: this is stale\n")
    assert "no test calls tutti_open()" in verbs_says(cpp, c + "tutti_status tutti_open(int a);\n", "")


if __name__ == "__main__":
    sys.exit(main())
