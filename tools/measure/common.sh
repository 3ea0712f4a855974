# Sourced by the measurements: two namespaces, an emulated link between them, nginx in the second.
# Everything is taken away again on exit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

for tool in ip nginx curl python3; do
    command -v "$tool" >/dev/null || { echo "this measurement needs $tool" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo "this measurement needs root for network namespaces" >&2; exit 1; }

brisk=${BRISK:-target/release/brisk}
[ -x "$brisk" ] || cargo build --release -p brisk
left=brisk-m-$$-a right=brisk-m-$$-b
work=$(mktemp -d)
pids=()

cleanup() {
    for pid in "${pids[@]}"; do kill -INT "$pid" 2>/dev/null || true; done
    [ -f "$work/nginx.pid" ] && kill "$(cat "$work/nginx.pid")" 2>/dev/null || true
    sleep 0.3
    ip netns del "$left" 2>/dev/null || true
    ip netns del "$right" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

# link SETTINGS...: 10.77.0.1 on the left, 10.77.0.2 on the right, the kernel's CUBIC on both sides.
link() {
    ip netns add "$left"; ip netns add "$right"
    ip -n "$left" link set lo up; ip -n "$right" link set lo up
    "$brisk" emulate --between "$left,$right" "$@" >"$work/link.txt" 2>&1 &
    pids+=($!)
    until ip -n "$right" addr show dev brisk0 2>/dev/null | grep -q 10.77.0.2; do sleep 0.1; done
    for side in "$left" "$right"; do
        ip -n "$side" route change 10.77.0.0/24 dev brisk0 proto kernel scope link congctl cubic
        ip netns exec "$side" sysctl -qw net.ipv4.tcp_no_metrics_save=1
    done
}

# origin DIR: nginx on the right, port 80, a connection per request.
origin() {
    cat >"$work/nginx.conf" <<CONF
pid $work/nginx.pid; error_log $work/nginx.log; worker_processes 1; events { worker_connections 4096; }
http { access_log off; server { listen 10.77.0.2:80; root $1; keepalive_timeout 0; } }
CONF
    ip netns exec "$right" nginx -c "$work/nginx.conf"
}

# Ends the link, so that what it has to say is in $work/link.txt.
unlink_and_report() {
    kill -INT "${pids[0]}"; wait "${pids[0]}" 2>/dev/null || true
    tail -n +3 "$work/link.txt"
}
