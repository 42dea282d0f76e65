"""Makes the man pages and the completions of bash, zsh and fish from the options of the programs.

usage: generate.py OPTIONS VERSION FILE...    FILE is NAME.1, or the script of a shell as it is installed
       generate.py OPTIONS --tables FILE...   fills the tables of options in documents
OPTIONS has the output of `tutti options`."""
import pathlib
import sys

from commands import read_commands
from completions import bash, fish, zsh
from pages import page, page_name, with_tables

SCRIPTS = {"tutti": bash, "_tutti": zsh, "tutti.fish": fish}


def main(options, version, *files):
    commands = read_commands(options)
    if version == "--tables":
        for file in map(pathlib.Path, files):
            file.write_text(with_tables(file.read_text(), commands))
        return
    pages = {f"{page_name(command)}.1": command for command in commands if command["name"] != "help"}
    texts = {name: page(command, commands, version) for name, command in pages.items()}
    texts |= {name: script(commands) for name, script in SCRIPTS.items()}
    if {pathlib.Path(file).name for file in files} != texts.keys():
        sys.exit(f"tools/manual/meson.build must name these files: {' '.join(sorted(texts))}")
    for file in files:
        pathlib.Path(file).write_text(texts[pathlib.Path(file).name])


if __name__ == "__main__":
    main(*sys.argv[1:])
