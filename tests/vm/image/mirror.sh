#!/bin/bash
# mirror.sh: which Debian mirror this machine's apt uses, as two assignments for a shell:
#   MIRROR=http://…/debian
#   SECURITY=http://…/debian-security     (empty if apt has none)
# apt itself reads its configuration, so .sources and one-line .list files, disabled entries and APT_CONFIG all count as they do for apt.
# GPUTUNE_VM_MIRROR and GPUTUNE_VM_SECURITY_MIRROR win over what apt says.
set -euo pipefail

mirror=${GPUTUNE_VM_MIRROR:-} security=${GPUTUNE_VM_SECURITY_MIRROR:-}
if [ -z "$mirror" ]; then
	# shellcheck disable=SC2016 # the variables are apt's
	while IFS='|' read -r release component uri; do
		[ "$component" = main ] || continue
		case $release in
		*-security | */updates) [ -n "$security" ] || security=$uri ;;
		*-updates | *-backports*) ;;
		*) [ -n "$mirror" ] || mirror=$uri ;;
		esac
	done < <(apt-get indextargets --no-release-info --format '$(RELEASE)|$(COMPONENT)|$(REPO_URI)' 'Created-By: Packages')
fi
if [ -z "$mirror" ]; then
	echo "mirror.sh: apt has no Debian archive with component main configured; add one to /etc/apt/sources.list.d or set GPUTUNE_VM_MIRROR=URL" >&2
	exit 1
fi
printf 'MIRROR=%q\nSECURITY=%q\n' "${mirror%/}" "${security%/}"
