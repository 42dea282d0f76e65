"""Checks shell scripts with shellcheck."""
import subprocess

import tree


def check(root):
    scripts = [p for p in tree.files(root) if p.read_bytes()[:64].startswith((b"#!/bin/sh", b"#!/usr/bin/env bash", b"#!/bin/bash"))]
    scripts += tree.files(root, ".bash")
    if not scripts:
        return []
    command = [tree.program("shellcheck"), "--external-sources", "--format=gcc",
               *(str(p.relative_to(root)) for p in scripts)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.splitlines()


if __name__ == "__main__":
    tree.run(check)
