#!/usr/bin/env python3
"""Writes the bill of materials of a release: SPDX 2.3, as JSON.

usage: sbom.py FOLDER VERSION SECONDS WHEEL >tutti-VERSION.spdx.json

FOLDER holds the artefacts. SECONDS since 1970 are the time that the document names, that of the commit. WHEEL is the
folder in which wheel/build has put the packages of Debian that are compiled into the wheel and the archive."""
import datetime
import hashlib
import json
import pathlib
import subprocess
import sys

# What the binaries of the wheel contain: name, Debian package, licence, supplier.
INSIDE = [
    ("fmt", "libfmt-dev", "MIT", "Person: Victor Zverovich"),
    ("Asio", "libasio-dev", "BSL-1.0", "Person: Christopher M. Kohlhoff"),
    ("Highway", "highway", "Apache-2.0 OR BSD-3-Clause", "Organization: Google"),
    ("Eigen", "libeigen3-dev", "MPL-2.0", "Organization: Eigen's authors"),
    ("OpenSSL", "libssl-dev", "Apache-2.0", "Organization: The OpenSSL Project"),
    ("CLI11", "libcli11-dev", "BSD-3-Clause", "Organization: University of Cincinnati"),
    ("nlohmann-json", "nlohmann-json3-dev", "MIT", "Person: Niels Lohmann"),
    ("libstdc++", "libstdc++-12-dev", "GPL-3.0-or-later WITH GCC-exception-3.1", "Organization: The GNU Project"),
]
BINARY = (".whl", ".tar.xz")


def version_of(package, wheel):
    """The version of a Debian package in the folder `wheel`, else of the one that is installed."""
    for file in sorted(wheel.rglob(f"{package}_*")):
        if file.suffix in (".deb", ".dsc"):
            return file.stem.split("_")[1].replace("%3a", ":")
    return subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], check=True, text=True, capture_output=True).stdout


def package(name, version, licence, supplier, **more):
    identifier = "SPDXRef-" + "".join(c if c.isalnum() else "-" for c in name)
    return {"SPDXID": identifier, "name": name, "versionInfo": version, "licenseConcluded": licence, "licenseDeclared": licence,
            "copyrightText": "NOASSERTION", "supplier": supplier, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, **more}


def artefact(file, version):
    """A file of the release, with its checksum."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return package(file.name, version, "Apache-2.0", "Organization: The tutti authors", packageFileName=file.name,
                   checksums=[{"algorithm": "SHA256", "checksumValue": digest}])


def document(folder, version, seconds, wheel):
    files = [artefact(file, version) for file in sorted(folder.iterdir()) if file.is_file()]
    inside = [package(name, version_of(debian, wheel), licence, supplier) for name, debian, licence, supplier in INSIDE
              if wheel.exists()]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", file["SPDXID"]) for file in files]
    relations += [(file["SPDXID"], "STATIC_LINK", part["SPDXID"]) for part in inside for file in files
                  if file["name"].endswith(BINARY) and "linux" in file["name"]]
    content = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"tutti-{version}",
            "documentNamespace": f"https://spdx.org/spdxdocs/tutti-{version}-{content}",
            "creationInfo": {"created": datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                             "creators": ["Tool: tutti-release"]},
            "packages": files + inside,
            "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b} for a, kind, b in relations]}


json.dump(document(pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4])), sys.stdout, indent=1)
print()
