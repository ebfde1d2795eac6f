#!/usr/bin/env bash
# Import speed: `stayput image import` of a disk as Flatcar publishes it, plain and compressed, in MB/s of raw bytes, beside
# the plain decompressor into sha256sum. The disk has MIB (384) of programs and libraries of this machine in the ext4 of its
# USR-A, with their hash tree, and a kernel with the root hash on its ESP. COUNT (3) rounds, in turns. Flatcar itself
# publishes only .bz2; what is packed in another way is recognised, too.
#
# Needs Debian and about six times MIB in $TMPDIR:
#   apt-get install --no-install-recommends bzip2 xz-utils zstd cryptsetup-bin dosfstools e2fsprogs fdisk mtools time
set -euo pipefail

count=${COUNT:-3} mib=${MIB:-384}
formats=(bin zst xz bz2)
declare -A times=() peaks=() plain=()

main() {
	local program
	for program in bzip2 xz zstd veritysetup mkfs.fat mkfs.ext4 sfdisk mcopy /usr/bin/time go; do
		command -v "$program" >/dev/null || fail "$program is missing; the head of this script has its package"
	done

	cd "$(dirname "$0")/../.."
	work=$(mktemp -d "${TMPDIR:-/tmp}/stayput-import.XXXXXX")
	trap 'rm -rf --one-file-system "$work"' EXIT
	trap 'exit 1' INT TERM HUP
	disk=$work/flatcar_production_image.bin

	echo "Preparing" >&2
	CGO_ENABLED=0 go build -o "$work/stayput" ./cmd/stayput
	make_usr
	make_kernel
	make_disk
	compress

	local round i
	for ((round = 0; round < count; round++)); do
		# Each round begins with another format, so that none is always after the same.
		for ((i = 0; i < ${#formats[@]}; i++)); do
			measure "${formats[(i + round) % ${#formats[@]}]}"
		done
	done

	print_table
}

fail() {
	echo "import.sh: $*" >&2
	exit 1
}

quietly() { "$@" >"$work/log" 2>&1 || fail "$1: $(tail -n 3 "$work/log")"; }

# make_usr makes USR-A: the file system, and the hash tree behind it, where Flatcar's initrd looks for it.
make_usr() {
	local tree=$work/tree
	mkdir -p "$tree/lib"
	printf '%s\n' ID=flatcar VERSION_ID=4459.2.1 FLATCAR_BOARD=amd64-usr >"$tree/lib/os-release"

	# What only root may read is left out.
	find /usr/bin /usr/lib -xdev -type d ! \( -readable -executable \) -prune -o \
		-type f -readable -size -32M ! -name os-release -printf '%s %p\n' | LC_ALL=C sort -k 2 |
		awk -v left=$((mib << 20)) 'left > 0 {left -= $1; sub(/^[0-9]+ /, ""); print} END {exit left > 0}' >"$work/list" ||
		fail "/usr has fewer than $mib MiB; choose a smaller MIB"
	tar -C / -cf - -T "$work/list" 2>"$work/log" | tar -C "$tree" --strip-components=1 -xf - || fail "tar: $(tail -n 3 "$work/log")"

	# Inodes and tails need room; what stays empty is zeros, as in a real one.
	usr=$((mib * 5 / 4 << 20))
	truncate -s "$usr" "$work/usr"
	quietly mkfs.ext4 -q -b 4096 -O ^has_journal -d "$tree" "$work/usr"
	rm -rf "$tree"
	quietly veritysetup format --hash=sha256 --data-blocks=$((usr / 4096)) --hash-offset="$usr" "$work/usr" "$work/usr"
	hash=$(sed -n 's/^Root hash:[[:space:]]*//p' "$work/log")
}

# make_kernel makes what begins like a kernel for amd64 and holds the root hash where GRUB of Flatcar looks for it.
make_kernel() {
	{
		printf 'MZ'
		head -c 58 /dev/zero
		printf '\x80\0\0\0%s' "$hash"
		printf 'PE\0\0\x64\x86'
		head -c 3962 /dev/zero
		head -c 12000000 /dev/urandom
	} >"$work/kernel"
}

make_disk() {
	local esp=128 part
	truncate -s ${esp}M "$work/esp"
	quietly mkfs.fat -F 32 -n EFI-SYSTEM "$work/esp"
	quietly mmd -i "$work/esp" ::/flatcar
	quietly mcopy -i "$work/esp" "$work/kernel" ::/flatcar/vmlinuz-a

	part=$((($(stat -c %s "$work/usr") >> 20) + 1))
	raw=$((1 + esp + part + 2))
	truncate -s ${raw}M "$disk"
	sfdisk -q "$disk" <<-END
		label: gpt
		start=1MiB, size=${esp}MiB, name=EFI-SYSTEM, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B
		size=${part}MiB, name=USR-A, type=5DFBF5F4-2848-4BAC-AA5E-0D9A20B745A6, uuid=7130C94A-213A-4E5A-8E26-6CCE9662F132
	END
	dd if="$work/esp" of="$disk" bs=1M seek=1 conv=notrunc,sparse status=none
	dd if="$work/usr" of="$disk" bs=1M seek=$((1 + esp)) conv=notrunc,sparse status=none
	rm "$work/esp" "$work/usr" "$work/kernel"
}

compress() {
	bzip2 -9 -k "$disk"
	zstd -q -9 -k "$disk"
	xz -6 -T2 -k "$disk"
}

file_of() { [ "$1" = bin ] && echo "$disk" || echo "$disk.$1"; }

unpack() {
	case $1 in
	bin) cat "$disk" ;;
	bz2) bzip2 -dc "$disk.bz2" ;;
	xz) xz -dc "$disk.xz" ;;
	zst) zstd -dcq "$disk.zst" ;;
	esac
}

# measure imports one format once, and decompresses it once.
measure() {
	local format=$1 file begin end seconds peak
	file=$(file_of "$format")
	cat "$file" >/dev/null
	sync

	/usr/bin/time -o "$work/time" -f '%e %M' "$work/stayput" image import "$file" "$work/image" --temp-dir "$work" \
		>"$work/log" 2>&1 || fail "importing $file: $(tail -n 3 "$work/log")"
	read -r seconds peak <"$work/time"
	rm -rf "$work/image"

	begin=${EPOCHREALTIME/[.,]/}
	unpack "$format" | sha256sum >/dev/null
	end=${EPOCHREALTIME/[.,]/}

	times[$format]+=" $seconds"
	peaks[$format]+=" $peak"
	plain[$format]+=" $(awk -v t=$((end - begin)) 'BEGIN {print t / 1e6}')"
	echo "round $((round + 1)): $format: imported in $seconds s, peak $peak kB; unpacked in ${plain[$format]##* } s" >&2
}

# median of a list of numbers.
median() { tr ' ' '\n' <<<"$1" | grep . | sort -g | sed -n "$(((count + 1) / 2))p"; }
rate() { awk -v mib="$raw" -v time="$1" 'BEGIN {printf "%.0f", mib * 1.048576 / time}'; }

print_table() {
	local format
	echo "disk of $((raw * 1048576 / 1000000)) MB, $mib MiB of files in it, $count rounds, $(nproc) processors, load $(cut -d' ' -f1 /proc/loadavg) in the end"
	echo
	echo "| file | MB | import, MB/s of raw bytes | decompressor and sha256sum, MB/s | import takes | peak memory |"
	echo "|---|---|---|---|---|---|"
	for format in "${formats[@]}"; do
		local time other
		time=$(median "${times[$format]}") other=$(median "${plain[$format]}")
		echo "| .$format | $(($(stat -c %s "$(file_of "$format")") / 1000000)) | $(rate "$time") | $(rate "$other") |" \
			"$(awk -v a="$time" -v b="$other" 'BEGIN {printf "%.2f x", a / b}') | $(($(median "${peaks[$format]}") / 1024)) MiB |"
	done
}

main
