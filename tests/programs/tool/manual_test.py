"""Man pages and completions say what the program accepts: manual_test.py PATH_OF_TUTTI FOLDER [unittest arguments].
FOLDER has the pages and scripts, and the options that they were made from."""
import os
import pathlib
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from driver import Program, main, tutti

FOLDER = pathlib.Path(sys.argv.pop(1)).resolve()
SOURCES = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCES / "tools/manual"))
from commands import read_commands, report_parser  # noqa: E402
from pages import page_name, with_tables  # noqa: E402

COMMANDS = read_commands(FOLDER / "options.json")
OF_THE_TOOL = [command for command in COMMANDS if not command["in_tutti_report"]]
# Calls the function of the script as bash does, and prints what it offers.
CALL = """source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_tutti && printf '%s\\n' "${COMPREPLY[@]}" """
# What a shell must offer: the words before the cursor, some of the offers, and some that are none.
OFFERS = (
    (["ben"], ["bench"], ["run"]),
    ([""], ["run", "bench", "compare", "help"], ["step", "options"]),
    (["--ver"], ["--version"], []),
    (["help", "doc"], ["doctor"], []),
    (["help", "bench", "s"], [], ["schema"]),
    (["bench", "all_reduce", "s"], ["scan"], ["step"]),
    (["bench", "--backend", "s"], ["shm"], ["tcp"]),
    (["bench", "-n", "2", "--dt"], ["--dtype"], []),
    (["bench", "all_reduce", "--dtype", "bf"], ["bf16"], ["f32"]),
    (["bench", "-f", ""], ["table", "json", "ndjson", "csv", "md"], ["text"]),
    (["bench", "all_g"], ["all_gather", "all_gather_rows"], ["all_reduce"]),
    (["bench", "st"], ["step"], []),
    (["bench", "step", "--ho"], ["--hook"], []),
    (["bench", "step", "--hook", ""], ["all_reduce", "fp16", "bf16", "noop"], []),
    (["bench", "--out", "some"], ["some.json"], []),
    (["diagnose", "some"], ["some.json"], []),
    (["doctor", "--format", "j"], ["json"], []),
    (["schema", ""], ["bench", "step"], []),
    (["compare", "--format", "m"], ["md"], []),
    (["compare", "some"], ["some.json"], []),
    (["check", "run.json", "--req"], ["--require"], []),
    (["report", "-o", "some"], ["some.json"], []),
    (["run", "--token-file", "some"], ["some.json"], []),
    (["run", "-n", "2", "--keep"], ["--keep-going"], []),
    (["run", "-n", "2", "some"], ["some.json"], []),
)


class Help(Program):
    def test_help_of_a_command_is_the_text_of_its_option(self):
        self.assertEqual(self.runs("help"), self.runs("--help"))
        for command in OF_THE_TOOL[1:]:
            words = command["name"].split()
            self.assertEqual(self.runs("help", *words), self.runs(*words, "--help"))

    def test_help_of_an_unknown_command_lists_those_that_are_there(self):
        self.refuses(64, ["help", "bensh"], "'bensh'", "run, bench")
        self.refuses(64, ["help", "bench", "stop"], "'stop'", "step")
        self.refuses(64, ["help", "run", "./program"], "'run' has no subcommand './program'")

    def test_both_programs_name_a_command_alike(self):
        for command in COMMANDS:
            if command["in_tutti_report"]:
                self.assertEqual(command["help"], report_parser(command["name"]).description)

    def test_choices_are_in_the_help(self):
        for command in OF_THE_TOOL:
            for option in command["options"]:
                if option["name"] != "COLL" and not {"--backend", "-d", "-o"} & set(option["flags"]):
                    for choice in option["choices"]:
                        self.assertRegex(option["help"], rf"(?<!\w){choice}(?!\w)", f"{command['name']} {option['flags']}")

    def test_examples_are_accepted(self):
        with tempfile.TemporaryDirectory() as folder:
            for command in OF_THE_TOOL:
                for line in command["examples"].splitlines():
                    words = shlex.split(line)
                    self.assertEqual(words[0], "tutti")
                    if words[1] in ("info", "schema", "help"):
                        self.runs(*words[1:])
                    elif words[1] == "bench" and words[2] != "step":
                        words = [word if word != "run.json" else f"{folder}/run.json" for word in words]
                        done = tutti(*words[1:], "--max-total", "1ms")
                        self.assertIn(done.returncode, (0, 69), done.stderr)   # 69: the backend is not in this build.


class Manual(Program):
    def text(self, command):
        return (FOLDER / f"{page_name(command)}.1").read_text()

    def test_pages_have_all_options_and_no_other(self):
        for command in COMMANDS:
            if command["name"] == "help":
                continue
            items = self.text(command).partition(".SH OPTIONS")[2].partition("\n.SH ")[0]
            tags = "\n".join(re.findall(r"^\.TP\n(.*)", items, re.M))
            flags = re.findall(r"\\fB(\\-.*?)\\fR", tags)
            groups = dict.fromkeys(option["group"] for option in command["options"])
            self.assertEqual([flag.replace("\\", "") for flag in flags],
                             [flag for group in groups for option in command["options"] if option["group"] == group
                              for flag in option["flags"]], command["name"])

    def test_flags_of_the_help_are_in_the_page(self):
        for command in OF_THE_TOOL[1:-1]:
            page = self.text(command).replace("\\", "")
            for flag in re.findall(r"^  (?:-\w,)?(--?[\w-]+)", self.runs(*command["name"].split(), "--help"), re.M):
                self.assertIn(f"fB{flag}fR", page)

    def test_pages_are_printed_without_warnings(self):
        for page in FOLDER.glob("*.1"):
            self.assertRegex(page.read_text(), rf"\A\.TH \S+ 1 .*\n\.nh\n\.SH NAME\n{re.escape(page.stem.replace('-', chr(92) + '-'))} \\- \w")
            if shutil.which("groff"):
                done = subprocess.run(["groff", "-man", "-ww", "-Kutf8", "-Tutf8", "-z", page], capture_output=True, text=True)
                self.assertEqual(done.stderr, "", page)
            if shutil.which("mandoc"):
                done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page], capture_output=True, text=True)
                self.assertEqual([line for line in done.stdout.splitlines() if "missing date" not in line], [])

    def test_the_documents_have_the_same_options(self):
        for name in ("tool", "launching"):
            text = (SOURCES / f"docs/{name}.md").read_text()
            self.assertTrue(with_tables(text, COMMANDS) == text,
                            f"docs/{name}.md: tools/manual/generate.py {FOLDER}/options.json --tables docs/{name}.md")


class Completion(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        pathlib.Path(self.folder, "some.json").touch()

    def offers(self, shell, *words):
        if not shutil.which(shell):
            self.skipTest(f"no {shell} here")
        if shell == "bash":
            command = ["bash", "--norc", "-c", CALL, "bash", FOLDER / "tutti", "tutti", *words]
        else:
            line = " ".join(["tutti", *map(shlex.quote, words[:-1]), words[-1]])
            command = ["fish", "--no-config", "-c", f"source {FOLDER}/tutti.fish; complete -C {shlex.quote(line)}"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, timeout=60,
                              env={**os.environ, "HOME": self.folder})
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    def check(self, shell):
        for words, some, others in OFFERS:
            offered = self.offers(shell, *words)
            self.assertLessEqual(set(some), set(offered), (words, offered))
            self.assertFalse(set(others) & set(offered), (words, offered))
        for command in COMMANDS:   # Each option, by its long and its short name.
            flags = [flag for option in command["options"] for flag in option["flags"]]
            before = command["name"].split() if command is not COMMANDS[0] else []
            self.assertEqual(set(flags), {flag for flag in self.offers(shell, *before, "-") + self.offers(shell, *before, "--")
                                          if flag.startswith("-")}, command["name"])

    def test_bash_offers_what_the_program_accepts(self):
        self.check("bash")
        self.assertEqual(self.offers("bash", "bench", "--dtype", "f32,bf"), ["f32,bf16"])
        self.assertEqual(self.offers("bash", "bench", "--mode", "=", "l"), ["latency"])
        self.assertEqual(self.offers("bash", "bench", "--mode", "="), ["throughput", "latency"])
        self.assertEqual(self.offers("bash", "bench", "--iface", ""), [""])
        self.assertIn("some.json", self.offers("bash", "run", "-n", "2", "--nnodes", "=", "2", "./program", "so"))
        self.assertNotIn("--ranks", self.offers("bash", "run", "-n", "2", "./program", "--r"))
        self.assertEqual(self.offers("bash", "bensh", "-"), [""])

    def test_fish_offers_what_the_program_accepts(self):
        self.check("fish")
        self.assertEqual(self.offers("fish", "bench", "--dtype", "f32,bf"), ["f32,bf16"])
        self.assertEqual(self.offers("fish", "bench", "--mode=l"), ["--mode=latency"])
        self.assertEqual(self.offers("fish", "bench", "--iface", "so"), [])

    def test_zsh_completes_what_the_program_accepts(self):
        if not shutil.which("zsh"):
            self.skipTest("no zsh here")
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(self.folder)
            os.environ.update(TERM="dumb", HOME=self.folder)
            os.execvp("zsh", ["zsh", "-f", "-i"])
        self.addCleanup(os.waitpid, process, 0)
        self.addCleanup(os.close, terminal)   # zsh ends.

        def shows(typed, text):
            """zsh echoes what is typed, and completes it."""
            os.write(terminal, typed.encode())
            shown, end = "", time.monotonic() + 20
            while text not in shown and time.monotonic() < end:
                if select.select([terminal], [], [], 0.1)[0]:
                    shown += os.read(terminal, 65536).decode(errors="replace").replace("\b", "")
            self.assertIn(text, shown, typed)

        shows(f"PS1=; stty cols 200; fpath=({FOLDER} $fpath); autoload -U compinit; compinit -u -D; print rea''dy\n", "ready")
        for typed, completed in (("ben", "bench "), ("--ver", "--version "), ("help doc", "help doctor "), ("bench --mode l", "latency "),
                                 ("bench --mode=l", "--mode=latency "), ("bench --dtype f32,bf", "f32,bf16"),
                                 ("bench all_gather_r", "all_gather_rows"), ("bench step --hook n", "noop "),
                                 ("bench step --bu", "--bucket"), ("bench --backend=sh", "=shm "), ("run -n 2 --keep", "--keep-going "),
                                 ("schema st", "step "), ("compare some.json so", "some.json some.json "), ("diagnose so", "some.json "),
                                 ("check --req", "--require"), ("report -o so", "some.json "), ("info --form", "--format")):
            shows(f"\x15tutti {typed}\t", f"{completed}")


if __name__ == "__main__":
    main()
