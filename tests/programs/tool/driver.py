"""What the tests of the program share: they run `tutti` with command lines of a user. A test is called as
TEST.py PATH_OF_TUTTI [unittest arguments]."""
import json
import os
import re
import signal
import subprocess
import sys
import unittest

try:
    import jsonschema
except ImportError:
    jsonschema = None

TUTTI = os.path.abspath(sys.argv.pop(1))
LAUNCHER_VARIABLES = re.compile(r"^(TUTTI_|RANK$|WORLD_SIZE$|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|OMPI_|PMI_|PALS_|SLURM_)")
# Outside of any launcher.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not LAUNCHER_VARIABLES.match(name)}


def tutti(*arguments, **variables):
    """Runs it; `variables` are added to the environment."""
    return subprocess.run([TUTTI, *map(str, arguments)], env={**ENVIRONMENT, **variables}, text=True,
                          capture_output=True, timeout=120)


def main():
    # A shell that runs this in the background may ignore some signals, and all its children would inherit that.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(ignored) == signal.SIG_IGN:
            signal.signal(ignored, signal.SIG_DFL)
    unittest.main(verbosity=2)


class Program(unittest.TestCase):
    def runs(self, *arguments, **variables):
        """The output of a run that must succeed."""
        done = tutti(*arguments, **variables)
        self.assertEqual(done.returncode, 0, f"{' '.join(map(str, arguments))}\n{done.stderr}")
        return done.stdout

    def measures(self, *arguments, **variables):
        return json.loads(self.runs("bench", *arguments, **variables))

    def refuses(self, code, arguments, *words, **variables):
        """Exits with `code` and one line on stderr that has all of `words`; nothing on stdout."""
        done = tutti(*arguments, **variables)
        with self.subTest(arguments=arguments):
            self.assertEqual((done.returncode, done.stdout), (code, ""), done.stdout + done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)

    def check_schema(self, name, runs, changes=(), row_changes=()):
        """The runs follow the schema. With a change the first one does not: the validator finds faults."""
        schema = json.loads(self.runs("schema", name))
        self.assertEqual(schema["$id"], f"tutti/{name}-run-1")
        if jsonschema is None:
            self.skipTest("the Python module jsonschema is not here: the output was not validated")
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        for run in runs:
            validator.validate(run)
        rows = [{"results": [{**runs[0]["results"][0], **change}]} for change in row_changes]
        for change in [*changes, *rows]:
            self.assertFalse(validator.is_valid({**runs[0], **change}), change)
