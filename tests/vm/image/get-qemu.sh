#!/bin/bash
# get-qemu.sh FOLDER: unpacks the QEMU of this Debian release's backports into FOLDER, beside the system's: nothing is installed.
# Shared libraries and virtiofsd come from the system's qemu-system-x86. Fails, with the reason, where there is no such package
# or it does not run here; the caller then uses the system's QEMU.
set -euo pipefail
export LC_ALL=C.UTF-8

out=${1:?folder}
here=$(cd "$(dirname "$0")" && pwd)
out=$(cd "$out" && pwd)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# shellcheck source=/dev/null
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$codename" ] || { echo "get-qemu.sh: /etc/os-release names no VERSION_CODENAME" >&2; exit 1; }
assignments=$("$here/mirror.sh")
eval "$assignments"

apt=$out/apt
mkdir -p "$apt"/lists/partial "$apt"/cache/archives/partial "$apt"/deb
echo "deb [signed-by=$keyring] $MIRROR $codename-backports main" >"$apt/sources.list"
apt_options=(-o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$apt/lists"
	-o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root -o Acquire::Check-Valid-Until=false -o Acquire::http::Timeout=20)
apt-get "${apt_options[@]}" update -qq
release=$codename-backports
(cd "$apt/deb" && apt-get "${apt_options[@]}" download -qq "qemu-system-x86/$release" "qemu-system-common/$release" "qemu-system-data/$release")
for deb in "$apt"/deb/*.deb; do dpkg -x "$deb" "$out"; done
rm -rf "$apt"
missing=$(ldd "$out/usr/bin/qemu-system-x86_64" | awk '/not found/ {print $1}' | paste -sd' ')
[ -z "$missing" ] || { echo "get-qemu.sh: the QEMU of $release needs libraries that are not installed: $missing" >&2; exit 1; }
"$out/usr/bin/qemu-system-x86_64" --version | head -n 1
