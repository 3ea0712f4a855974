"""A steady load of HTTP requests, each over its own connection, and their results.

    load.py run ADDRESS:PORT PATH RATE SECONDS [HOLD [TIMEOUT]] > LOG
        Sends RATE requests a second at fixed times, independent of earlier responses. With HOLD, a connection stays open for HOLD
        seconds after its response and then sends a second request. Prints a line for each request: start (s since the epoch),
        duration (s), outcome, and bytes of the response. Failures of second requests begin with "held-".
        With FAST_OPEN=1 in the environment the request is on the SYN, by the kernel's Fast Open.
    load.py open ADDRESS:PORT PATH COUNT PARALLEL WAIT
        Sends COUNT requests, PARALLEL at a time, each over its own connection that has been open for WAIT seconds. Prints a line
        for each, like `exchange load`: its third word is the ms from the request to the last byte of the response.
    load.py slow ADDRESS:PORT COUNT
        Opens COUNT connections and prints "ready". Every second one sends a byte (zero) a second, the others nothing. Connections
        that the server closes are opened again. Ends with SIGTERM.
    load.py sum NAME LOG [BYTES CPU]
        Prints a row: requests, failures, percentiles in ms; with BYTES and CPU also the bytes on the wire per byte of payload and
        the ms of processor time per request.
    load.py faults NAME LOG AT
        Prints a row about a fault that happened at AT: see tools/measure/faults.
    load.py over-time LOG WINDOW
        Prints requests, failures and percentiles in windows of WINDOW seconds.
    load.py verdict LOG SAMPLES
        Prints a row for each minute (requests, failures, percentiles, memory and descriptors of each side), and whether no request
        failed and the other figures are flat. SAMPLES has a line for each minute: seconds since the epoch and, for the frontend and
        the backend, or for an edge alone, resident MB, MB that the program has allocated, and descriptors. The exit status is 1 if
        a check fails.
"""
import asyncio
import math
import os
import re
import socket
import statistics
import sys
import time
from collections import Counter

TCP_FASTOPEN_CONNECT = 30
FAST_OPEN = bool(os.environ.get("FAST_OPEN"))


async def connect(host, port):
    if not FAST_OPEN:
        return await asyncio.open_connection(host, port)
    client = socket.socket()
    client.setblocking(False)
    client.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
    await asyncio.get_running_loop().sock_connect(client, (host, port))
    return await asyncio.open_connection(sock=client)


async def request(host, port, path, hold, timeout, log):
    reader = writer = None

    async def exchange():
        nonlocal reader, writer
        if writer is None:
            reader, writer = await connect(host, port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: origin\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            return "status", 0
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        body = await reader.readexactly(int(fields[b"content-length"]))
        return "ok", len(body)

    for name in ["", "held-"] if hold > 0 else [""]:
        began, size = time.time(), 0
        try:
            outcome, size = await asyncio.wait_for(exchange(), timeout)
        except asyncio.TimeoutError:
            outcome = "timeout"
        except asyncio.IncompleteReadError:
            outcome = "closed"
        except ConnectionRefusedError:
            outcome = "refused"
        except OSError as error:
            outcome = "reset" if isinstance(error, ConnectionError) else type(error).__name__
        if outcome != "ok":
            outcome = name + outcome
        log.write(f"{began:.4f} {time.time() - began:.4f} {outcome} {size}\n")
        if outcome != "ok":
            break
        if hold > 0 and not name:
            await asyncio.sleep(hold)
    if writer is not None:
        writer.close()


async def run(address, path, rate, seconds, hold=0.0, timeout=20.0):
    host, port = address.rsplit(":", 1)
    start, count = time.monotonic(), int(rate * seconds)
    open_requests = set()
    for n in range(count):
        await asyncio.sleep(max(0.0, start + n / rate - time.monotonic()))
        task = asyncio.create_task(request(host, int(port), path, hold, timeout, sys.stdout))
        open_requests.add(task)
        task.add_done_callback(open_requests.discard)
    while open_requests:
        await asyncio.wait(open_requests)


async def open_for(address, path, count, parallel, wait):
    host, port = address.rsplit(":", 1)
    begun = iter(range(count))

    async def worker(number):
        # The workers begin at different times.
        await asyncio.sleep(number * 7 % 200 / 1e3)
        for _ in begun:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
                await asyncio.sleep(wait)
                start = time.monotonic()
                writer.write(f"GET {path} HTTP/1.1\r\nHost: origin\r\nX-Filling: {'x' * 340}\r\n\r\n".encode())
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)
                length = re.search(rb"(?i)content-length: (\d+)", head)[1]
                body = await asyncio.wait_for(reader.readexactly(int(length)), 120)
                print(f"0 0 {1e3 * (time.monotonic() - start):.3f} {len(body)}")
                writer.close()
            except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
                print("failed", type(error).__name__)

    await asyncio.gather(*map(worker, range(parallel)))


async def slow(address, count):
    host, port = address.rsplit(":", 1)
    opened = 0

    async def client(number):
        nonlocal opened
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
                opened += 1
                if opened == count:
                    print("ready", flush=True)
                while number % 2:
                    writer.write(b"\0")
                    await writer.drain()
                    await asyncio.sleep(1)
                while await reader.read(4096):
                    pass
                writer.close()
            except OSError:
                await asyncio.sleep(1)

    clients = []
    for number in range(count):
        clients.append(asyncio.create_task(client(number)))
        if number % 100 == 99:
            await asyncio.sleep(0.05)
    await asyncio.gather(*clients)


def read(path):
    lines = (line.split() for line in open(path))
    return [(float(began), float(took), outcome) for began, took, outcome, _ in lines]


def milliseconds(requests):
    """Returns the quantile function of the times of successful requests, ms."""
    times = sorted(took for _, took, outcome in requests if outcome == "ok")
    return lambda p: 1e3 * times[math.ceil(p * len(times)) - 1] if times else math.nan


def summary(name, path, wire=None, cpu=None):
    requests = read(path)
    at, answered = milliseconds(requests), sum(outcome == "ok" for _, _, outcome in requests)
    row = f"{name:26} {len(requests):6} {len(requests) - answered:6} {at(.5):8.0f} {at(.95):8.0f} {at(.99):8.0f}"
    if wire is not None:
        payload = sum(int(line.split()[3]) for line in open(path))
        row += f" {int(wire) / max(1, payload):7.3f} {1e3 * float(cpu) / max(1, len(requests)):10.2f}"
    print(row)


def faults(name, path, at):
    """Prints the row of a fault, with separate counts for requests that began before it and after it."""
    flying, new = [], []
    for began, took, outcome in sorted(read(path)):
        if began >= at:
            new.append((began - at, took, outcome))
        elif began + took > at:
            flying.append((began - at, took, outcome))
    lost = lambda requests: sum(outcome != "ok" for _, _, outcome in requests)
    told = sorted({outcome for _, _, outcome in flying + new if outcome != "ok"})
    before = [took for began, took, outcome in read(path) if began + took < at and outcome == "ok"]
    late = max(1, 1.5 * statistics.median(before or [0]))
    # The start of the last new request that failed or was late.
    recovered = max((began for began, took, outcome in new if outcome != "ok" or took > late), default=0)
    slowest = max((took for _, took, outcome in new if outcome == "ok"), default=math.nan)
    print(f"{name:34} {len(flying):6} {lost(flying):5} {len(new):6} {lost(new):5} {slowest:8.2f} {recovered:9.2f}  "
          + ",".join(told))


# Maximum growth of a figure in a long load, as a share of its value in the first half of the checked time.
FLAT = {"memory": 0.05, "allocated": 0.05, "descriptors": 0.05, "p99": 0.25}


def verdict(path, samples):
    requests = sorted(read(path))
    start = requests[0][0]
    looks = [[float(word) for word in line.split()] for line in open(samples)]
    sides = ["edge"] if len(looks[0]) == 4 else ["frontend", "backend"]
    print(f"{'minute':>6} {'requests':>9} {'failed':>7} {'p50 ms':>7} {'p95 ms':>7} {'p99 ms':>7}"
          + "".join(f" {side + ' MB':>11} {'alloc.':>7} {'files':>6}" for side in sides))
    minutes = []
    for minute in range(len(looks)):
        part = [r for r in requests if 60 * minute <= r[0] - start < 60 * (minute + 1)]
        at, answered = milliseconds(part), sum(outcome == "ok" for _, _, outcome in part)
        look = min(looks, key=lambda look: abs(look[0] - start - 60 * (minute + 1)))[1:]
        minutes.append((at(.99), look))
        print(f"{minute + 1:6} {len(part):9} {len(part) - answered:7} {at(.5):7.0f} {at(.95):7.0f} {at(.99):7.0f}"
              + "".join(f" {look[n]:11.1f} {look[n + 1]:7.1f} {look[n + 2]:6.0f}" for n in range(0, len(look), 3)))
    lost = Counter(outcome for _, _, outcome in requests if outcome != "ok")
    reasons = ", ".join(f"{count} {outcome}" for outcome, count in sorted(lost.items()))
    told = [("no request failed", not lost, f"{lost.total()} of {len(requests)} {reasons}")]
    # The checks begin after a third of the time, because connections are opened and tables fill before.
    settled = minutes[len(minutes) // 3:]
    series = [("p99", "p99, ms", [p99 for p99, _ in settled])]
    for at, side in zip((0, 3), sides):
        series.append(("memory", f"memory of the {side}, MB", [look[at] for _, look in settled]))
        series.append(("allocated", f"allocated by the {side}, MB", [look[at + 1] for _, look in settled]))
        series.append(("descriptors", f"descriptors of the {side}", [look[at + 2] for _, look in settled]))
    for kind, name, values in series:
        # Medians of the two halves, because a single minute may be disturbed by other work on the machine.
        half = max(1, len(values) // 2)
        before, after = statistics.median(values[:half]), statistics.median(values[-half:])
        good = len(values) > 1 and after <= before * (1 + FLAT[kind])
        slope = statistics.linear_regression(range(len(values)), values).slope if len(values) > 1 else math.nan
        told.append((f"flat: {name}", good, f"{before:.0f} -> {after:.0f}, least {min(values):.0f}, most {max(values):.0f}, "
                     f"slope {60 * slope:+.1f} an hour"))
    for name, good, figures in told:
        print(f"{'ok ' if good else 'NOT'} {name}: {figures}")
    return all(good for _, good, _ in told)


def over_time(path, window):
    requests = sorted(read(path))
    print(f"{'from s':>8} {'requests':>9} {'failed':>7} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8} {'max ms':>8}")
    first = requests[0][0]
    for n in range(int((requests[-1][0] - first) // window) + 1):
        part = [r for r in requests if n * window <= r[0] - first < (n + 1) * window]
        at, answered = milliseconds(part), sum(outcome == "ok" for _, _, outcome in part)
        print(f"{n * window:8.0f} {len(part):9} {len(part) - answered:7} "
              f"{at(.5):8.0f} {at(.95):8.0f} {at(.99):8.0f} {at(1):8.0f}")


if __name__ == "__main__":
    verb, *words = sys.argv[1:]
    if verb == "run":
        asyncio.run(run(words[0], words[1], *map(float, words[2:])))
    elif verb == "open":
        asyncio.run(open_for(words[0], words[1], int(words[2]), int(words[3]), float(words[4])))
    elif verb == "slow":
        asyncio.run(slow(words[0], int(words[1])))
    elif verb == "sum":
        summary(*words)
    elif verb == "faults":
        faults(words[0], words[1], float(words[2]))
    elif verb == "verdict":
        sys.exit(not verdict(*words))
    else:
        over_time(words[0], float(words[1]))
