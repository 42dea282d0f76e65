# Functions that debs and compilers share: roots of Debian's releases. Sourced, not run.
# shellcheck source-path=SCRIPTDIR source=../prepare.bash
source "$(dirname "${BASH_SOURCE[0]}")/../prepare.bash"

# debian_mirror: the address of the first mirror of Debian in apt's configuration, where roots can be made.
debian_mirror() {
  ((EUID == 0)) || die "roots are made and entered as root"
  command -v mmdebstrap >/dev/null || die "there is no mmdebstrap: apt-get install mmdebstrap"
  local mirror
  # shellcheck disable=SC2016  # Fields of apt are in single quotes.
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(COMPONENT) $(CREATED_BY)' 2>/dev/null |
    sed -n '/security/d; s/ Debian main Packages$//p' | head -n 1)
  [[ -n $mirror ]] || die "apt's configuration names no mirror of Debian"
  echo "$mirror"
}

# enter ROOT COMMAND...: the command in the root, without another network than loopback. Nothing stays mounted.
enter() {
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --net --kill-child bash -c '
    mount --make-rprivate / && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && ip link set lo up &&
    exec chroot "$0" "$@"' "$@"
}
