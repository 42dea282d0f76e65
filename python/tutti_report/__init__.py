"""Reads the JSON of `tutti bench`: compares runs, checks rules about them, draws them. Needs numpy, scipy and matplotlib,
neither torch nor the library. Read runs.py first, which has the fields of a run; __main__.py is the program tutti-report."""
