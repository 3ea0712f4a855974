"""Exchanges of tools/measure/kernel-reference over the kernel's TCP: a request of 40 bytes and a response of BYTES.

usage: kernel_reference.py serve [SNDBUF] | load MODE BYTES COUNT PARALLEL | compare TIMES WHATIF.json
"""
import json
import math
import socket
import sys
import threading
import time

SERVER = ("10.77.0.2", 7001)
REQUEST = 40
QUANTILES = (0.5, 0.9, 0.95, 0.99)
# Seconds after which an exchange has failed.
LIMIT = 120
# Position of tcpi_total_retrans in Linux's struct tcp_info: after 8 bytes and 23 words.
TOTAL_RETRANS = slice(100, 104)


def received(peer, wanted):
    data = bytearray()
    while len(data) < wanted:
        part = peer.recv(wanted - len(data))
        if not part:
            raise ConnectionError("closed early")
        data += part
    return bytes(data)


def answer(peer):
    try:
        while True:
            peer.sendall(bytes(int(received(peer, REQUEST).strip())))
    except OSError:
        peer.close()


def serve(send_buffer):
    """Answers requests. With `send_buffer` above 0, bytes, the send buffer has this size from the beginning and holds the response."""
    listener = socket.create_server(SERVER, backlog=4096)
    if send_buffer:
        # Accepted sockets inherit the size, and the kernel then does not change it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    print("ready", flush=True)
    while True:
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=answer, args=(peer,), daemon=True).start()


def connected():
    peer = socket.socket()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.settimeout(LIMIT)
    peer.connect(SERVER)
    return peer


def repeated(peer):
    """True if the kernel has retransmitted something on this connection. Right after `connect` that is the SYN: it or its answer
    was lost."""
    return int.from_bytes(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)[TOTAL_RETRANS], sys.byteorder) > 0


def opened(mode):
    """Opens a connection. `clean` accepts only connections whose handshake lost no packet, because the kernel begins with a window
    of one segment after a SYN-ACK that was repeated twice."""
    peer = connected()
    while mode == "clean" and repeated(peer):
        peer.close()
        peer = connected()
    return peer


def load(mode, size, count, parallel):
    request = str(size).encode().ljust(REQUEST)
    numbers, printing = iter(range(count)), threading.Lock()

    def more():
        with printing:
            return next(numbers, None) is not None

    def worker():
        kept = None
        while more():
            try:
                began = time.monotonic()
                peer = kept or opened(mode)
                if mode in ("open", "clean"):
                    time.sleep(1)
                if mode != "new":
                    began = time.monotonic()
                peer.sendall(request)
                received(peer, size)
                took = 1000 * (time.monotonic() - began)
                if mode == "kept":
                    kept = peer
                else:
                    peer.close()
            except OSError as error:
                took, kept = f"failed {error}", None
            with printing:
                print(took, flush=True)

    workers = [threading.Thread(target=worker) for _ in range(parallel)]
    for one in workers:
        time.sleep(0.007)
        one.start()
    for one in workers:
        one.join()


def quantile(times, q):
    return times[min(len(times) - 1, max(0, math.ceil(q * len(times)) - 1))]


def compare(times, whatif):
    lines = open(times).read().splitlines()
    kernel = sorted(float(line) for line in lines if not line.startswith("failed"))
    n = len(kernel)
    print(f"{'ms':22}" + "".join(f"{'p' + format(100 * q, 'g'):>24}" for q in QUANTILES) + f"{'mean':>9}")
    cells = []
    for q in QUANTILES:
        # Ranks of the 95 % interval of the quantile (binomial, normal approximation).
        off = 1.96 * math.sqrt(q * (1 - q) / n)
        cells.append(f"{quantile(kernel, q):.0f} ({quantile(kernel, q - off):.0f}..{quantile(kernel, q + off):.0f})")
    print(f"{'kernel n=' + str(n):22}" + "".join(f"{cell:>24}" for cell in cells) + f"{sum(kernel) / n:9.0f}")
    for arm in json.load(open(whatif))["arms"]:
        values = [f"{arm['ms']['p' + format(100 * q, 'g')]:.0f}" for q in QUANTILES]
        print(f"{'brisk ' + arm['name']:22}" + "".join(f"{value:>24}" for value in values) + f"{arm['ms']['mean']:9.0f}")
    if n < len(lines):
        print(f"{len(lines) - n} exchanges failed")


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "serve":
        serve(int(rest[0]) if rest else 0)
    elif what == "load":
        load(rest[0], *map(int, rest[1:]))
    else:
        compare(*rest)
