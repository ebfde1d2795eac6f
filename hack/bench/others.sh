#!/usr/bin/env bash
# Staging throughput beside other updaters: one content, programs and libraries of this machine, is written to a new file by
# each of them, in turns, COUNT times (3), and compared byte by byte. MIB (512) is its size. All that fetch do it from
# 127.0.0.1 with TLS. What they fetch was read just before, so the page cache has it, as if another machine served it; what
# they write is on the medium when the clock stops.
#
# Needs root, Debian, network for apt, and five times the content in $TMPDIR, which is best on a disk with nothing else on it:
#   apt-get install --no-install-recommends docker-registry curl zstd openssl rauc squashfs-tools dbus-daemon dbus-bin casync
# systemd-sysupdate reads zstd from version 258 on, which Debian 12 and 13 do not have: its packages come from SUITE (forky)
# and are unpacked, not installed.
set -euo pipefail

count=${COUNT:-3} mib=${MIB:-512} suite=${SUITE:-forky}
bytes=$((mib << 20))
methods=(ours pipe rauc_file rauc_fetched sysupdate casync)
declare -A title=() note=() skipped=() times=() errors=() started=()

main() {
	[ "$(id -u)" = 0 ] || fail "mounting and loop devices need root"
	for program in docker-registry curl zstd openssl go unshare; do
		command -v "$program" >/dev/null || fail "$program is missing: apt-get install docker-registry curl zstd openssl util-linux"
	done

	cd "$(dirname "$0")/../.."
	work=$(mktemp -d "${TMPDIR:-/tmp}/stayput-others.XXXXXX")
	target=$work/target
	trap clean EXIT
	trap 'exit 1' INT TERM HUP
	export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1

	for setup in content stayput fileserver rauc sysupdate casync; do
		echo "Preparing: $setup" >&2
		"set_up_$setup"
	done

	for ((round = 0; round < count; round++)); do
		# Each round begins with another method, so that none is always after the same.
		for ((i = 0; i < ${#methods[@]}; i++)); do
			measure "${methods[(i + round) % ${#methods[@]}]}"
		done
	done

	print_table
}

fail() {
	echo "others.sh: $*" >&2
	exit 1
}

# start runs a program in the background: its output goes to NAME.out and NAME.log, its process id into $pid.
start() {
	local name=$1
	shift
	"$@" >"$work/$name.out" 2>"$work/$name.log" &
	pid=$!
	started[$pid]=$name
}

stop() {
	for pid; do
		kill "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
		unset "started[$pid]"
	done
}

# until_true asks every 0.1 s, for 20 s.
until_true() {
	local deadline=$((SECONDS + 20))
	until "$@" >/dev/null 2>&1; do
		[ "$SECONDS" -lt "$deadline" ] || return 1
		sleep 0.1
	done
}

clean() {
	stop "${!started[@]}"
	rm -rf --one-file-system "$work"
}

# lacks tells which programs a method needs and are not there.
lacks() {
	local program missing=
	for program; do
		command -v "$program" >/dev/null || missing+=" $program"
	done
	[ -n "$missing" ] && echo "missing:$missing"
}

size_of() { echo "$(($(du -sb "$1" | cut -f1) / 1000000)) MB"; }

# trusting runs a command for which the bench's authority is the only one; programs with libcurl take no other.
trusting() {
	# shellcheck disable=SC2016 # The inner shell expands them.
	unshare --mount --propagation private sh -c 'mount --bind "$0" /etc/ssl/certs/ca-certificates.crt && exec "$@"' \
		"$work/cert.pem" "$@"
}

set_up_content() {
	# The programs come first, then what they use; random bytes if that is not enough.
	{ find /usr/bin /usr/lib -type f -print0 | LC_ALL=C sort -z | xargs -0 cat 2>/dev/null | head -c "$bytes" || true; } \
		>"$work/content"
	local have
	have=$(stat -c %s "$work/content")
	head -c $((bytes - have)) /dev/urandom >>"$work/content"

	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=stayput-bench \
		-addext subjectAltName=IP:127.0.0.1 -keyout "$work/key.pem" -out "$work/cert.pem" 2>"$work/openssl.log"
}

set_up_stayput() {
	title[ours]="ours, \`stayput image write\`"
	title[pipe]="\`curl \\| zstd -d \\| dd conv=fsync\`"

	CGO_ENABLED=0 go build -o "$work/stayput" ./cmd/stayput
	CGO_ENABLED=0 go build -o "$work/fileserver" ./hack/bench/fileserver

	cat >"$work/registry.yml" <<-END
		{version: "0.1", log: {level: info, accesslog: {disabled: true}}, storage: {filesystem: {rootdirectory: "$work/registry"}},
		http: {addr: "127.0.0.1:0", tls: {certificate: "$work/cert.pem", key: "$work/key.pem"}}}
	END
	start registry env OTEL_TRACES_EXPORTER=none docker-registry serve "$work/registry.yml"
	until_true grep -q "listening on" "$work/registry.out" "$work/registry.log" || fail "docker-registry did not start: $(tail -n 3 "$work/registry.log")"
	registry=$(grep -ho "listening on 127.0.0.1:[0-9]*" "$work/registry.out" "$work/registry.log" | grep -o "127.*")

	# Nothing reads the kernel; of all schemes this one has the fewest parts.
	echo none >"$work/kernel"
	"$work/stayput" image build "$work/image" --name bench --version 1 --scheme gptprio --root-hash "$(printf %064d 1)" \
		--usr "$work/content" --kernel "$work/kernel" >"$work/build.log" 2>&1 || fail "$(tail -n 1 "$work/build.log")"
	"$work/stayput" image push "$work/image" "$registry/os/bench:1" --ca-file "$work/cert.pem" >"$work/push.log" 2>&1 ||
		fail "$(tail -n 1 "$work/push.log")"

	layer=$(find "$work/image/blobs/sha256" -type f -printf '%s %f\n' | sort -n | tail -n 1 | cut -d' ' -f2)
	mkdir "$work/www"
	mv "$work/image/blobs/sha256/$layer" "$work/www/usr_1.img.zst"
	note[ours]="layer of $(size_of "$work/www/usr_1.img.zst"); checks the layer's digest and, of what it reads back from the medium, the content's; the signature is for \`image verify\`, not for this command"
	note[pipe]="the same layer; checks nothing"
}

prepare_ours() { cat "$work/registry/docker/registry/v2/blobs/sha256/${layer:0:2}/$layer/data" >/dev/null; }
run_ours() { "$work/stayput" image write "$registry/os/bench:1" "$target" --role usr --ca-file "$work/cert.pem"; }

prepare_pipe() { prepare_ours; }
run_pipe() {
	curl -fsS --cacert "$work/cert.pem" "https://$registry/v2/os/bench/blobs/sha256:$layer" | zstd -dcq |
		dd of="$target" bs=1M conv=fsync iflag=fullblock status=none
}

set_up_fileserver() {
	start fileserver "$work/fileserver" "$work/www" "$work/cert.pem" "$work/key.pem"
	until_true grep -q . "$work/fileserver.out" || fail "the file server did not start: $(cat "$work/fileserver.log")"
	files=https://$(cat "$work/fileserver.out")
}

set_up_rauc() {
	title[rauc_file]="\`rauc install\` of a local bundle"
	title[rauc_fetched]="\`curl\`, then \`rauc install\`"
	if skipped[rauc_file]=$(lacks rauc mksquashfs dbus-daemon dbus-send); then
		skipped[rauc_file]+=": apt-get install --no-install-recommends rauc squashfs-tools dbus-daemon dbus-bin"
		skipped[rauc_fetched]=${skipped[rauc_file]}
		return
	fi

	local format=plain
	if [ -e /dev/mapper/control ] && dmsetup targets 2>/dev/null | grep -q ^verity; then
		format=verity
	fi

	mkdir "$work/bundle" "$work/mnt"
	ln "$work/content" "$work/bundle/usr.img"
	printf '%s\n' '[update]' compatible=bench version=1 '[bundle]' format=$format '[image.usr]' filename=usr.img >"$work/bundle/manifest.raucm"
	if ! rauc bundle --cert="$work/cert.pem" --key="$work/key.pem" --mksquashfs-args="-comp zstd -Xcompression-level 8" \
		"$work/bundle" "$work/www/bench.raucb" >"$work/rauc-bundle.log" 2>&1; then
		skipped[rauc_file]="making the bundle failed: $(tail -n 1 "$work/rauc-bundle.log")"
		skipped[rauc_fetched]=${skipped[rauc_file]}
		return
	fi

	cat >"$work/bus.conf" <<-END
		<busconfig><type>system</type><listen>unix:path=$work/bus</listen><auth>EXTERNAL</auth>
		<policy context="default"><allow own="*"/><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/></policy></busconfig>
	END
	cat >"$work/rauc.conf" <<-END
		[system]
		compatible=bench
		bootloader=noop
		statusfile=$work/rauc.status
		mountprefix=$work/mnt
		[keyring]
		path=$work/cert.pem
		[slot.usr.0]
		device=$work/running
		type=raw
		bootname=A
		[slot.usr.1]
		device=$target
		type=raw
		bootname=B
	END
	truncate -s "$bytes" "$work/running"
	export DBUS_SYSTEM_BUS_ADDRESS=unix:path=$work/bus
	start bus dbus-daemon --config-file="$work/bus.conf" --nofork --nopidfile

	note[rauc_file]="$(rauc --version), format $format, $(size_of "$work/www/bench.raucb"): is on the disk and in the page cache, fetches nothing; checks the signature over the bundle, reads nothing back"
	note[rauc_fetched]="the same bundle, stored first; \`rauc install URL\` was not measured: it needs nbd and dm-verity, $(has_nbd)"
}

has_nbd() {
	if grep -q nbd /proc/devices && [ -e /dev/mapper/control ]; then
		echo "and this script leaves that out"
	else
		echo "of which this kernel lacks at least one"
	fi
}

# RAUC writes to a device that exists. It starts anew each time, knowing no slot's status; its mounts end with it.
prepare_rauc_file() {
	truncate -s "$bytes" "$target"
	rm -f "$work/rauc.status"
	cat "$work/www/bench.raucb" >/dev/null
	start rauc unshare --mount --propagation private rauc --conf="$work/rauc.conf" --override-boot-slot=A service
	running=$pid
	until_true dbus-send --system --reply-timeout=1000 --print-reply --dest=de.pengutronix.rauc / org.freedesktop.DBus.Peer.Ping ||
		{ echo "the service does not answer: $(tail -n 1 "$work/rauc.log")" && return 1; }
}
run_rauc_file() { rauc install "$work/www/bench.raucb"; }
finish_rauc_file() { stop "$running"; }

prepare_rauc_fetched() { prepare_rauc_file; }
run_rauc_fetched() {
	curl -fsS --cacert "$work/cert.pem" -o "$work/fetched.raucb" "$files/bench.raucb" && rauc install "$work/fetched.raucb"
}
finish_rauc_fetched() {
	finish_rauc_file
	rm -f "$work/fetched.raucb"
}

set_up_sysupdate() {
	title[sysupdate]="\`systemd-sysupdate\`"
	if skipped[sysupdate]=$(lacks apt-get dpkg-deb); then
		return
	fi

	local apt=$work/apt root=$work/root
	local options=(
		-qq -o "Dir=$apt" -o "Dir::State::status=$apt/status" -o Dir::Etc::TrustedParts=/etc/apt/trusted.gpg.d
		-o APT::Sandbox::User=root -o APT::Install-Recommends=false -o Acquire::Languages=none
	)
	mkdir -p "$apt"/etc/apt/{sources.list.d,apt.conf.d,preferences.d} "$apt/var/lib/apt/lists/partial" \
		"$apt/var/cache/apt/archives/partial" "$root"
	: >"$apt/status"
	local mirror
	if ! mirror=$(hack/debian-mirror.sh Debian 2>&1); then
		skipped[sysupdate]=$mirror
		return
	fi
	printf '%s\n' "Types: deb" "URIs: $mirror" "Suites: $suite" "Components: main" \
		"Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg" >"$apt/etc/apt/sources.list.d/debian.sources"

	# systemd opens libcurl when it needs it, so its package only recommends that.
	if ! { apt-get "${options[@]}" update && apt-get "${options[@]}" install -y --download-only systemd-container libcurl4t64; } \
		>"$work/apt.log" 2>&1; then
		skipped[sysupdate]="fetching systemd of Debian $suite failed: $(tail -n 1 "$work/apt.log"); SUITE chooses another"
		return
	fi

	local package name
	for package in "$apt"/var/cache/apt/archives/*.deb; do
		dpkg-deb -x "$package" "$root"
	done
	rm -rf "$apt"
	# base-files has these links, which nothing that systemd depends on needs.
	for name in bin sbin lib lib64; do
		[ -e "$root/$name" ] || ln -s "usr/$name" "$root/$name"
	done

	mkdir -p "$root"/{dev,proc,slots} "$root/etc/sysupdate.d" "$root/etc/ssl/certs"
	cp "$work/cert.pem" "$root/etc/ssl/certs/ca-certificates.crt"
	cat >"$root/etc/sysupdate.d/usr.transfer" <<-END
		[Transfer]
		Verify=no
		[Source]
		Type=url-file
		Path=$files/
		MatchPattern=usr_@v.img.zst
		[Target]
		Type=regular-file
		Path=/slots
		MatchPattern=usr_@v.img
	END
	(cd "$work/www" && sha256sum usr_1.img.zst >SHA256SUMS)

	note[sysupdate]="$(chroot "$root" /usr/lib/systemd/systemd-sysupdate --version | head -n 1), Debian $suite; the same layer; checks its SHA-256, which nobody signed (Verify=no), reads nothing back"
}

prepare_sysupdate() { rm -f "$work"/root/slots/* && cat "$work/www/usr_1.img.zst" >/dev/null; }
run_sysupdate() {
	# shellcheck disable=SC2016 # The inner shell expands them.
	unshare --mount --propagation private sh -c 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" &&
		exec chroot "$0" /usr/lib/systemd/systemd-sysupdate update' "$work/root"
}
finish_sysupdate() { mv "$work/root/slots/usr_1.img" "$target"; }

set_up_casync() {
	title[casync]="\`casync extract\`, then \`sync\`"
	if skipped[casync]=$(lacks casync); then
		skipped[casync]+=": apt-get install --no-install-recommends casync"
		return
	fi

	if ! casync make --store="$work/www/store.castr" "$work/www/usr.caibx" "$work/content" >"$work/casync-make.log" 2>&1; then
		skipped[casync]="making the store failed: $(tail -n 1 "$work/casync-make.log")"
		return
	fi
	note[casync]="$(casync --version), no seed; $(find "$work/www/store.castr" -type f | wc -l) chunks of $(size_of "$work/www/store.castr"), one by one; checks each chunk's digest, the index is not signed, reads nothing back"
}

prepare_casync() { find "$work/www/store.castr" -type f -exec cat {} + >/dev/null; }
run_casync() {
	trusting casync extract --seed-output=no --store="$files/store.castr" "$files/usr.caibx" "$target" && sync "$target"
}

# measure runs one method once and notes its time in microseconds, or its first error.
measure() {
	local method=$1 log=$work/$1.run.log begin end failed=
	[ -z "${skipped[$method]:-}${errors[$method]:-}" ] || return 0

	rm -f "$target"
	if ! "prepare_$method" >"$log" 2>&1; then
		errors[$method]="preparing: $(tail -n 1 "$log")"
		return 0
	fi
	sync

	begin=${EPOCHREALTIME/[.,]/}
	"run_$method" >"$log" 2>&1 || failed="ended with status $?"
	end=${EPOCHREALTIME/[.,]/}

	if declare -F "finish_$method" >/dev/null; then
		"finish_$method" >>"$log" 2>&1 || failed=${failed:-left no target}
	fi
	# The pages are dropped, so that the medium is compared and not the cache.
	[ -n "$failed" ] || dd if="$target" iflag=nocache count=0 status=none
	[ -n "$failed" ] || cmp "$work/content" "$target" >>"$log" 2>&1 || failed="wrote something else"

	if [ -n "$failed" ]; then
		errors[$method]="$failed: $(tail -n 1 "$log")"
		echo "round $((round + 1)): $method: ${errors[$method]}" >&2
		return 0
	fi

	times[$method]+=" $((end - begin))"
	echo "round $((round + 1)): $method: $(rate $((end - begin))) MB/s" >&2
}

rate() { awk -v bytes="$bytes" -v time="$1" 'BEGIN {printf "%.0f", bytes / time}'; }

# sorted prints a method's times, the shortest first.
sorted() { tr ' ' '\n' <<<"${times[$1]}" | grep . | sort -n; }
median() { sorted "$1" | sed -n "$(((count + 1) / 2))p"; }

print_table() {
	local method own=
	[ -n "${errors[ours]:-}" ] || own=$(median ours)

	echo "$mib MiB, $count rounds, $(uname -r), $(nproc) processors, $(stat -f -c %T "$work"), load $(cut -d' ' -f1 /proc/loadavg) in the end"
	echo
	echo "| method | MB/s, median (least to most) | ours is | note |"
	echo "|---|---|---|---|"

	for method in "${methods[@]}"; do
		if [ -n "${skipped[$method]:-}" ]; then
			echo "| ${title[$method]} | not measured | – | ${skipped[$method]} |"
		elif [ -n "${errors[$method]:-}" ]; then
			echo "| ${title[$method]} | error | – | ${errors[$method]} |"
		else
			echo "| ${title[$method]} | $(rate "$(median "$method")") ($(rate "$(sorted "$method" | tail -n 1)") to" \
				"$(rate "$(sorted "$method" | head -n 1)")) | $(awk -v own="$own" -v other="$(median "$method")" \
					'BEGIN {if (own) printf "%.2f x", other / own; else printf "–"}') | ${note[$method]} |"
		fi
	done

	[ ${#errors[@]} = 0 ] || exit 1
}

main
