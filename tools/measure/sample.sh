# Sourced by the scripts that profile a row of `brisk bench`: samples the stacks of one end with perf during the measurement.

# sample BRISK ROW SECONDS END DATA RECORDING PERF-WORDS...: measures ROW once, writes the output of `brisk bench` to RECORDING and
# samples of brisk's server (END=server) or client (END=client) to DATA. In rows with brisk on both sides of the comparison, the
# baseline is sampled, which is measured first.
sample() {
    local brisk=$1 row=$2 seconds=$3 end=$4 data=$5 said=$6 bench server= pid=
    shift 6
    command -v perf >/dev/null || { echo "perf is not installed (linux-perf)" >&2; return 1; }
    "$brisk" bench -q --rows "$row" --rounds 1 --seconds "$seconds" --json >"$said" 2>"$said.errors" &
    bench=$!
    # The kernel's server and client are measured first, brisk's in the second half.
    while kill -0 "$bench" 2>/dev/null; do
        server=$(pgrep -P "$bench" -f 'bench --end.*Brisk.*Serve' | head -1 || true)
        pid=$server
        [ "$end" = server ] || pid=$(pgrep -P "$bench" -f 'bench --end.*Ask' | head -1 || true)
        [ -z "$server" ] || [ -z "$pid" ] || break
        sleep 0.1
    done
    [ -n "$server" ] && [ -n "$pid" ] || { cat "$said.errors" >&2; echo "no $end of brisk in row $row" >&2; return 1; }
    sleep 1
    perf record -q -e cpu-clock -F 4000 "$@" -p "$pid" -o "$data" -- sleep $((seconds - 2)) 2>/dev/null
    wait "$bench" || { cat "$said.errors" >&2; return 1; }
}

# cost RECORDING END: prints the cost of one unit of the row at this end, in nanoseconds, and the name of the unit.
cost() {
    python3 - "$@" <<'EOF'
import json, sys
row = json.load(open(sys.argv[1]))["rows"][0]
cost = row["candidate"]["median"]
print(cost["server"] if sys.argv[2] == "server" else cost["both"] - cost["server"], row["unit"])
EOF
}
