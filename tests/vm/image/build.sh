#!/bin/bash
# build.sh SUITE FOLDER: builds a bootable Debian SUITE with systemd and Slurm into FOLDER (which exists and is empty):
#   root.img   sparse GPT disk, ext4 in its first partition       vmlinuz   its kernel; no initrd is needed
#   info       versions of what is inside                         build.log what mmdebstrap said
# Everything is written below FOLDER; nothing is mounted but by mmdebstrap, so run it in a mount namespace of its own. Needs root.
set -euo pipefail
export LC_ALL=C.UTF-8

suite=${1:?suite} out=${2:?folder}
here=$(cd "$(dirname "$0")" && pwd)
out=$(cd "$out" && pwd)
root=$out/root
size_mib=900
partuuid=5EED0000-0000-4000-8000-000000000001 # numavm boots root=PARTUUID=…
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

die() { echo "build.sh: $*" >&2; exit 1; }
list() { sed 's/#.*//; s/[[:space:]]//g; /^$/d' "$here/$1"; }
step_started=$EPOCHREALTIME
step() { # step NAME: reports what the step that just ended took
	local now=$EPOCHREALTIME
	printf '%s %d.%d s\n' "$1" $(((${now/./} - ${step_started/./}) / 1000000)) $((((${now/./} - ${step_started/./}) / 100000) % 10))
	step_started=$now
}

[ "$(id -u)" = 0 ] || die "needs root (mmdebstrap --mode=root, chroot)"
for tool in mmdebstrap sfdisk mke2fs depmod; do
	command -v "$tool" >/dev/null || die "$tool is missing: apt-get install mmdebstrap fdisk e2fsprogs kmod"
done
assignments=$("$here/mirror.sh")
eval "$assignments"

sources=("deb [signed-by=$keyring] $MIRROR $suite main")
[ -z "$SECURITY" ] || sources+=("deb [signed-by=$keyring] $SECURITY $suite-security main")

# A mirror that is a snapshot of some day serves Release files that are past their date.
apt_options=(-o Acquire::Check-Valid-Until=false -o Acquire::Retries=3 -o APT::Sandbox::User=root)

# --- root file system
packages=$(list packages | paste -sd,)
mmdebstrap --mode=root --variant=minbase --include="$packages" \
	--aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Retries "3"' \
	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
	"$suite" "$root" "${sources[@]}" >"$out/build.log" 2>&1 ||
	{ tail -n 25 "$out/build.log" >&2; die "mmdebstrap could not build $suite from $MIRROR"; }
step rootfs

# --- kernel: the packages are unpacked without their maintainer scripts, which would want an initrd and a boot loader
apt=$out/apt
mkdir -p "$apt"/lists/partial "$apt"/cache/archives/partial "$apt"/deb
printf '%s\n' "${sources[@]}" >"$apt/sources.list"
apt_options+=(-o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$apt/lists"
	-o Dir::Cache="$apt/cache" -o Dir::State::status=/dev/null)
apt-get "${apt_options[@]}" update -qq
image=$(apt-cache "${apt_options[@]}" depends linux-image-cloud-amd64 | awk '/Depends: *linux-(image|binary)-?[0-9]/ {print $2; exit}')
[ -n "$image" ] || die "linux-image-cloud-amd64 of $suite names no kernel package"
# forky's kernel is three packages: linux-image-V needs linux-binary-V and linux-modules-V
mapfile -t kernel_packages < <({
	echo "$image"
	apt-cache "${apt_options[@]}" depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
		--no-enhances "$image" | grep -E '^linux-(binary|modules|base)-[0-9]' || true
} | sort -u)
(cd "$apt/deb" && apt-get "${apt_options[@]}" download -qq "${kernel_packages[@]}")
for deb in "$apt"/deb/*.deb; do dpkg -x "$deb" "$apt/kernel"; done
modules=$(find "$apt/kernel" -type d -path '*/lib/modules/*' -prune -print -quit)
[ -n "$modules" ] || die "no modules in ${kernel_packages[*]}"
release=${modules##*/}
for kernel in "$apt/kernel/boot/vmlinuz-$release" "$modules/vmlinuz"; do [ ! -e "$kernel" ] || break; done
cp "$kernel" "$out/vmlinuz"
mkdir -p "$root/usr/lib/modules"
cp -a "$modules" "$root/usr/lib/modules/"
chroot "$root" depmod "$release"
step kernel

# --- configuration
units=$root/etc/systemd/system
install -m755 "$here/numavm-init" "$root/usr/local/sbin/"
install -m644 "$here/numavm.service" "$units/"
mkdir -p "$units/sysinit.target.wants" "$root/host" "$root/etc/systemd/journald.conf.d" "$root/etc/systemd/system.conf.d" "$root/etc/slurm"
ln -sfn ../numavm.service "$units/sysinit.target.wants/"
ln -sfn /lib/systemd/system/multi-user.target "$units/default.target"
for unit in $(list masked-units); do ln -sfn /dev/null "$units/$unit"; done
list blacklisted-modules | sed 's/^/blacklist /' >"$root/etc/modprobe.d/numavm.conf"
rm -f "$root"/usr/lib/modules-load.d/*.conf "$root"/etc/modules-load.d/*.conf
# The daemons are there as packaged, and started when a test has written their configuration.
rm -f "$units"/multi-user.target.wants/{slurmd,slurmctld,munge,remote-fs,e2scrub_reap,cron,ssh}.*
printf '[Journal]\nStorage=volatile\nForwardToConsole=no\nAudit=no\n' >"$root/etc/systemd/journald.conf.d/numavm.conf"
printf '[Manager]\nDefaultTimeoutStartSec=300s\nDefaultTimeoutStopSec=10s\nDefaultDeviceTimeoutSec=300s\nRuntimeWatchdogSec=0\n' \
	>"$root/etc/systemd/system.conf.d/numavm.conf"
echo node1 >"$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.0.1 node1\n' >"$root/etc/hosts"
echo 5eed5eed5eed5eed5eed5eed5eed5eed >"$root/etc/machine-id"
: >"$root/etc/fstab"
[ -s "$root/etc/munge/munge.key" ] || head -c 1024 /dev/urandom >"$root/etc/munge/munge.key"
chroot "$root" sh -ec '
	chown munge:munge /etc/munge/munge.key; chmod 400 /etc/munge/munge.key
	mkdir -p /var/spool/slurmctld /var/spool/slurmd /var/log/slurm; chown slurm:slurm /var/spool/slurmctld /var/log/slurm
	useradd --create-home --shell /bin/bash --uid 1000 user
	passwd -d root'
# shellcheck disable=SC2016 # the variables are dpkg's
chroot "$root" dpkg-query -W -f '${Package} ${Version}\n' slurmd systemd hwloc-nox >"$out/info"
echo "kernel $release" >>"$out/info"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root/usr/share/zoneinfo"
step configuration

# --- disk: mke2fs -d writes the file system from the folder, so nothing is mounted and no loop device is needed
truncate -s $((size_mib + 2))M "$out/root.img"
printf 'label: gpt\nstart=2048, size=%d, uuid=%s, name=root\n' $((size_mib * 2048)) "$partuuid" | sfdisk -q "$out/root.img"
mke2fs -q -t ext4 -d "$root" -L root -m 0 -J size=8 -O ^metadata_csum -E offset=1048576,lazy_itable_init=1 "$out/root.img" "${size_mib}M"
rm -rf "$root" "$apt"
step disk
