# Common part of the measurements, which source it: two network namespaces, an emulated link between them, and nginx in the
# second. All of this is removed on exit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

for tool in ip nginx curl python3; do
    command -v "$tool" >/dev/null || { echo "this measurement needs $tool" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "this measurement needs root for network namespaces" >&2; exit 1; }

built=${CARGO_TARGET_DIR:-target}/release
brisk=${BRISK:-$built/brisk} exchange=${EXCHANGE:-$built/examples/exchange}
[ -x "$brisk" ] || cargo build --release -p brisk
[ -x "$exchange" ] || cargo build --release -p brisk --example exchange
left=brisk-m-$$-a right=brisk-m-$$-b
work=$(mktemp -d)
pids=() link_pid=

cleanup() {
    # The link prints its report on SIGINT; the background jobs of a script ignore that signal.
    [ -z "$link_pid" ] || kill -INT "$link_pid" 2>/dev/null || true
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    [ -f "$work/nginx.pid" ] && kill "$(cat "$work/nginx.pid")" 2>/dev/null || true
    sleep 0.3
    ip netns del "$left" 2>/dev/null || true
    ip netns del "$right" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

# link SETTINGS...: starts a link with 10.77.0.1 on the left and 10.77.0.2 on the right. Both kernels use CUBIC.
link() {
    # A script that needs special namespaces has created them before.
    for side in "$left" "$right"; do [ -e "/run/netns/$side" ] || ip netns add "$side"; done
    ip -n "$left" link set lo up; ip -n "$right" link set lo up
    "$brisk" emulate --between "$left,$right" "$@" >"$work/link.txt" 2>&1 &
    link_pid=$!
    until ip -n "$right" addr show dev brisk0 2>/dev/null | grep -q 10.77.0.2; do sleep 0.1; done
    for side in "$left" "$right"; do
        ip -n "$side" route change 10.77.0.0/24 dev brisk0 proto kernel scope link congctl cubic
        ip netns exec "$side" sysctl -qw net.ipv4.tcp_no_metrics_save=1
    done
}

# Joins the namespaces by a veth pair with the addresses of the link and no delay, for costs that the emulator would hide.
wire() {
    ip netns add "$left"; ip netns add "$right"
    ip -n "$left" link set lo up; ip -n "$right" link set lo up
    ip -n "$left" link add brisk0 type veth peer name brisk0 netns "$right"
    ip -n "$left" addr add 10.77.0.1/24 dev brisk0; ip -n "$right" addr add 10.77.0.2/24 dev brisk0
    for side in "$left" "$right"; do
        ip -n "$side" link set brisk0 up
        ip -n "$side" route change 10.77.0.0/24 dev brisk0 proto kernel scope link congctl cubic
        ip netns exec "$side" sysctl -qw net.ipv4.tcp_no_metrics_save=1
    done
}

# Defines networks for brisk's stacks, which are hosts behind the two kernels, each on a TUN device: 10.79.x.y on the left, a new
# address each time because of the TIME-WAITs of the previous one, and 10.78.0.2 on the right. Their packets pass one more kernel
# on each side than the kernel's own packets, which adds about 0.1 ms to a round trip.
our_networks() {
    for side in "$left" "$right"; do ip netns exec "$side" sysctl -qw net.ipv4.ip_forward=1; done
    ip -n "$left" route add 10.78.0.0/24 via 10.77.0.2
    ip -n "$right" route add 10.79.0.0/16 via 10.77.0.1
}

# started COMMAND...: runs the command in the background until the script ends; returns when the command has printed "ready".
started() {
    local said=$work/started.$RANDOM.$RANDOM
    : >"$said"
    "$@" >"$said" 2>>"$work/errors" &
    pids+=($!)
    until grep -q ready "$said"; do
        kill -0 "${pids[-1]}" 2>/dev/null || { cat "$work/errors" >&2; return 1; }
        sleep 0.05
    done
}

# Start the loads and servers of tools/measure, with the kernel's TCP and with brisk's; `exchange --help` lists the FLAGS. A load
# connects to the server with the same TCP unless $to names another. They have real-time priority below that of the link, so that
# other work on the machine does not delay them: a user-space TCP that waits for the processor would look slower than the
# kernel's TCP, which runs in interrupts.
to=
pin="chrt --fifo 5"; $pin true 2>/dev/null || pin=
kernel_server() {
    # shellcheck disable=SC2086 # pin is a command and its words
    started ip netns exec "$right" $pin "$exchange" serve --listen 10.77.0.2:7000 "$@"
}
our_server() {
    # shellcheck disable=SC2086
    started ip netns exec "$right" $pin "$exchange" serve --listen 10.78.0.2:7000 \
        --device tun:brisk1 --addr 10.78.0.2/24 "$@"
}
kernel_load() {
    # shellcheck disable=SC2086
    ip netns exec "$left" $pin "$exchange" load --to "${to:-10.77.0.2:7000}" "$@"
}
our_load() {
    # shellcheck disable=SC2086
    ip netns exec "$left" $pin "$exchange" load --to "${to:-10.78.0.2:7000}" --device tun:brisk2 \
        --addr "10.79.$((RANDOM % 256)).$((2 + RANDOM % 250))/16" "$@"
}

# Stops everything, so that the script can start another link. The report of the link is in $work/link.txt.
take_down() {
    local pid
    [ -z "$link_pid" ] || kill -INT "$link_pid" 2>/dev/null || true
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in $link_pid "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    pids=() link_pid=
    ip netns del "$left"; ip netns del "$right"
}

# Prints the version and the settings of this machine's kernel.
kernel_profile() {
    local key
    printf 'kernel %s, route congctl cubic' "$(uname -r)"
    for key in tcp_recovery tcp_early_retrans tcp_syn_linear_timeouts tcp_rto_min_us tcp_no_metrics_save; do
        printf ', %s=%s' "$key" "$(ip netns exec "$left" sysctl -n "net.ipv4.$key" 2>/dev/null || echo none)"
    done
    echo
}

# change_address OLD NEW: replaces the address of the link on the left.
change_address() {
    # Otherwise the kernel removes the new address, which is secondary, with the old one.
    ip netns exec "$left" sysctl -qw net.ipv4.conf.all.promote_secondaries=1 net.ipv4.conf.brisk0.promote_secondaries=1
    ip -n "$left" addr add "$2/24" dev brisk0
    ip -n "$left" addr del "$1/24" dev brisk0
}

# origin DIR: starts nginx on the right at port 80, with a connection for each request.
origin() {
    cat >"$work/nginx.conf" <<CONF
pid $work/nginx.pid; error_log $work/nginx.log; worker_processes 1; events { worker_connections 4096; }
http { access_log off; server { listen 10.77.0.2:80; root $1; keepalive_timeout 0; } }
CONF
    ip netns exec "$right" nginx -c "$work/nginx.conf"
}

# Stops the link and prints its report.
unlink_and_report() {
    kill -INT "$link_pid"; wait "$link_pid" 2>/dev/null || true
    link_pid=
    tail -n +3 "$work/link.txt"
}
