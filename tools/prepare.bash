# Functions that quickstart and check share: packages, configuration, build. Sourced, not run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${BUILD_DIR:-build}
[[ $build == /* ]] || build=$root/$build
may_install=yes
packages_changed=no

# Meson asks dpkg-dev for Debian's folder of libraries; without it meson install takes one that no linker searches.
build_packages=(g++ dpkg-dev meson ninja-build pkg-config libfmt-dev libasio-dev libhwy-dev libcli11-dev nlohmann-json3-dev
  libgloo-dev libucx-dev libssl-dev)

say() { printf '\n==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# install_packages NAME...: prints which of these packages and of the build packages are missing, and installs them.
install_packages() {
  [[ $may_install == yes ]] || return 0
  set -- "${build_packages[@]}" "$@"
  local program installed package missing=() become_root=()
  for program in apt-get dpkg-query; do
    command -v "$program" >/dev/null ||
      die "there is no $program: packages can be installed on Debian and its relatives only. Install what these Debian" \
          "packages hold, then run this with --no-install: $*"
  done
  installed=$'\n'$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)$'\n'
  for package; do
    [[ $installed == *$'\n'"$package installed"$'\n'* ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0

  say "Missing packages, to be installed: ${missing[*]}"
  if ((EUID)); then
    command -v sudo >/dev/null ||
      die "to install packages, be root or install sudo. As root: apt-get install --no-install-recommends ${missing[*]}"
    become_root=(sudo)
  fi
  local install=(apt-get install -qq --no-install-recommends)
  local install_as_root=("${become_root[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}" -y "${missing[@]}")
  # Runs apt-get update only when the packages cannot be installed without it.
  if ! "${install[@]}" --simulate "${missing[@]}" >/dev/null 2>&1 || ! "${install_as_root[@]}" >/dev/null; then
    "${become_root[@]}" apt-get update -qq
    "${install_as_root[@]}" >/dev/null || die "apt-get could not install: ${missing[*]}"
  fi
  packages_changed=yes
}

# Options for a build folder with the tool and every backend that can be built; tools/check appends options.
# shellcheck disable=SC2034  # The scripts that source this file use it.
tool_options="--buildtype=release -Dtool=enabled -Dbackends=auto -Dcuda="

# configured FOLDER "OPTIONS": true if the folder was configured with options that begin with these, and no package was
# installed since.
configured() {
  [[ -f $1/build.ninja && $packages_changed == no && $(cat "$1/configured-with" 2>/dev/null) == "$2"* ]]
}

# configure FOLDER OPTION...: runs meson setup, unless the folder is configured with these options.
configure() {
  local folder=$1 again=()
  shift
  ! configured "$folder" "$*" || return 0
  [[ ! -f $folder/build.ninja ]] || again=(--reconfigure)
  say "Configuring $folder: $*"
  meson setup "${again[@]}" "$folder" "$root" "$@" && printf '%s\n' "$*" >"$folder/configured-with"
}

# compile FOLDER [TARGET...]: runs $JOBS compilers at a time, by default one per processor.
compile() {
  local folder=$1
  shift
  say "Building $folder"
  # By preprocessed text ccache would give the precompiled header of other comments and spaces, whose files GCC then
  # includes a second time. The namespace leaves out what earlier builds have stored so.
  CCACHE_DEPEND=1 CCACHE_NAMESPACE=tutti ninja -C "$folder" ${JOBS:+-j "$JOBS"} "$@"
}
