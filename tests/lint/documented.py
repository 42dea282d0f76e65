"""Finds public names of the headers that have no comment, and comments that Doxygen cannot read.

A name is a type, a function, a variable, a field, an enumeration or a macro. These need no comment: operators,
constructors and destructors, values of an enumeration, overloads beside one with a comment, functions whose base class
has it, and friends that are classes. tools/packaging/site/Doxyfile says which headers are read, and how."""
import pathlib
import re
import subprocess
import tempfile
import xml.etree.ElementTree as xml

import tree

DOXYFILE = pathlib.Path(__file__).resolve().parents[2] / "tools" / "packaging" / "site" / "Doxyfile"
CLASSES = ("struct", "class", "union")


def is_described(element):
    return any("".join(element.find(kind).itertext()).strip()
               for kind in ("briefdescription", "detaileddescription", "inbodydescription") if element.find(kind) is not None)


def needs_none(member, class_name):
    """Whether a member needs no comment, by its name or by what it is. `class_name` has no namespaces."""
    name = member.findtext("name")
    return (member.get("prot") == "private" or member.find("reimplements") is not None
            or re.match(r"operator\b|~|@|$", name) or name == class_name
            or member.get("kind") == "friend" and member.findtext("type").split(" ")[0] in CLASSES)


def undocumented(compound):
    """The location and the name of each name of a class, a namespace or a file that needs a comment."""
    name = compound.findtext("compoundname")
    if compound.get("kind") in CLASSES and not is_described(compound):
        yield compound.find("location"), name
    members = list(compound.iter("memberdef"))
    described = {member.findtext("name") for member in members if is_described(member)}
    for member in members:
        if member.findtext("name") not in described and not needs_none(member, re.sub(r"<.*", "", name).split("::")[-1]):
            yield member.find("location"), member.findtext("qualifiedname") or member.findtext("name")


def run_doxygen(root, *options):
    """The messages of Doxygen over the headers of a tree, each once, with these options beside those of DOXYFILE."""
    run = subprocess.run([tree.program("doxygen"), "-"], cwd=root, input="\n".join([DOXYFILE.read_text(), *options]),
                         capture_output=True, text=True, check=True)
    return sorted({line.replace(f"{root}/", "") for line in run.stderr.splitlines()})


def check(root):
    found = set()
    with tempfile.TemporaryDirectory() as folder:
        messages = run_doxygen(root, "GENERATE_XML = YES", "XML_PROGRAMLISTING = NO", f"OUTPUT_DIRECTORY = {folder}")
        for path in pathlib.Path(folder, "xml").glob("*.xml"):
            for compound in xml.parse(path).getroot().iter("compounddef"):
                if compound.get("prot") != "private":
                    found |= {(place.get("file"), int(place.get("line")), name) for place, name in undocumented(compound)}
    return [f"include/{file}:{line}: {name} has no comment" for file, line, name in sorted(found)] + messages


if __name__ == "__main__":
    tree.run(check)
