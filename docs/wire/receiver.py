#!/usr/bin/env python3
"""A receiver of parity (Corrective, profile F2) in Python, written from the pages of this directory alone.

    python3 receiver.py CAPTURE     (pcapng, times in microseconds, Ethernet or raw IP)

The program acts as the receiver of every connection with parity: it reassembles the stream from the segments that arrived
(inbound in epb_flags), repairs missing bytes, prints each repair, and compares the stream with the bytes that were sent
(outbound). Exit status: 0 all bytes are right, 1 bytes are wrong or missing, 2 no connection has parity. It sends nothing: the
reports and the test of SEG.ACK in W-5.4 are left out. A number such as W-5.6 names the sentence that a line implements.
"""
import pathlib
import struct
import sys

ENC, R_FAIL, FIN_END = 0x10, 0x20, 0x01
FIN, SYN, RST, ACK, URG = 1, 2, 4, 16, 32

def packets(data):
    """Yields (time, direction, IP packet); the direction is 1 inbound, 2 outbound, 0 unknown."""
    at, order, links = 0, "<", []
    while at + 12 <= len(data):
        kind = struct.unpack_from(order + "I", data, at)[0]
        if kind == 0x0A0D0D0A:
            order, links = ("<" if data[at + 8:at + 12] == b"\x4d\x3c\x2b\x1a" else ">"), []
        size = struct.unpack_from(order + "I", data, at + 4)[0]
        if kind == 1:
            links.append(struct.unpack_from(order + "H", data, at + 8)[0])
        elif kind == 6:
            interface, high, low, kept = struct.unpack_from(order + "IIII", data, at + 8)
            option, direction = at + 28 + (kept + 3) // 4 * 4, 0
            while option + 4 <= at + size - 4:
                code, length = struct.unpack_from(order + "HH", data, option)
                if code == 2:
                    direction = struct.unpack_from(order + "I", data, option + 4)[0] & 3
                option += 4 + (length + 3) // 4 * 4
            frame = data[at + 28:at + 28 + kept]
            yield high << 32 | low, direction, frame[14:] if links[interface] == 1 else frame
        at += max(size, 12)

class Segment:
    """One TCP segment; `gentle` is the value of the option after the ExID, None without one."""

    def __init__(self, packet):
        self.ok = False
        if len(packet) < 40:
            return
        if packet[0] >> 4 == 4 and packet[9] == 6:
            head = (packet[0] & 15) * 4
            self.src, self.dst, end = packet[12:16], packet[16:20], struct.unpack_from(">H", packet, 2)[0]
        elif packet[0] >> 4 == 6 and packet[6] == 6:
            head, end = 40, 40 + struct.unpack_from(">H", packet, 4)[0]
            self.src, self.dst = packet[8:24], packet[24:40]
        else:
            return
        tcp = packet[head:end]
        ports, self.seq, self.ack, bits, self.window = struct.unpack_from(">IIIHH", tcp)
        self.src, self.dst = self.src + ports.to_bytes(4, "big")[:2], self.dst + ports.to_bytes(4, "big")[2:]
        self.flags = bits & 0xFF
        size = (bits >> 12) * 4
        self.payload, self.mss, self.scale, self.tsval, self.gentle, self.malformed = tcp[size:], 536, 0, None, None, False
        self.options(tcp[20:size])
        self.ok = True

    def options(self, area):
        while area and area[0] != 0:
            if area[0] == 1:
                area = area[1:]
                continue
            length = area[1] if len(area) > 1 else 0
            ours = area[0] in (253, 254) and area[2:4] == b"\xdc\x60"  # W-1.5, W-2.10
            if length < 2 or length > len(area):
                self.malformed |= ours and not self.flags & SYN  # W-2.13
                return
            value = area[2:length]
            if area[0] == 2:
                self.mss = int.from_bytes(value, "big")
            elif area[0] == 3:
                self.scale = min(value[0], 14)
            elif area[0] == 8:
                self.tsval = int.from_bytes(value[:4], "big")
            elif ours and self.flags & SYN and len(value) == 3 and value[2] & 0x30 > 0x10:
                pass  # W-2.1, W-2.21
            elif ours:
                form = value[2:]
                both = self.gentle is not None and ENC & (form[:1] or b"\0")[0] | ENC & (self.gentle[:1] or b"\0")[0]
                self.malformed |= bool(both) or not self.flags & SYN and is_malformed(form)  # W-2.13
                self.gentle = form
            area = area[length:]

    def encoded(self):
        return not self.flags & SYN and bool(self.gentle) and self.gentle[0] & ENC

def is_malformed(form):
    """W-2.11, W-2.12: Length counts kind, Length and ExID as well."""
    if len(form) + 4 not in (5, 8, 15, 16):
        return True
    bad = len(form) == 12 and not form[11] >> 4 < form[11] & 15 <= 8
    return bad or form[0] & R_FAIL or not any(form[1:4]) if form[0] & ENC else len(form) == 12

EXP, LOG = [0] * 510, [0] * 256
value = 1
for power in range(255):  # W-4.12
    EXP[power] = EXP[power + 255] = value
    LOG[value] = power
    value = value << 1 ^ (0x11D if value & 0x80 else 0)
TABLE = list(range(256))
for _ in range(8):  # W-4.14
    TABLE = [byte >> 1 ^ (0x82F63B78 if byte & 1 else 0) for byte in TABLE]

def multiply(a, b):
    return EXP[LOG[a] + LOG[b]] if a and b else 0

def divide(a, b):
    return EXP[LOG[a] + 255 - LOG[b]] if a else 0

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF

def solve(rows):
    """Gauss in GF(256): rows of m coefficients and the right side; returns the m unknowns."""
    size = len(rows)
    for column in range(size):
        pivot = next(row for row in range(column, size) if rows[row][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [divide(x, rows[column][column]) for x in rows[column]]
        for row in range(size):
            factor = rows[row][column]
            if row != column and factor:
                rows[row] = [x ^ multiply(factor, y) for x, y in zip(rows[row], rows[column])]
    return [row[size] for row in rows]

class Receiver:
    """One direction of a connection. Places in the stream are counted from the first stream byte."""

    def __init__(self, code, irs, rmss):
        self.code, self.irs, self.rmss = code, irs, rmss
        self.most = 32 if code == 3 else 16  # W-4.2
        self.bytes, self.have, self.next, self.edge = bytearray(), bytearray(), 0, 0
        self.fin, self.recent, self.kept, self.mismatches, self.repairs, self.on = None, None, [], 0, [], True
        self.span = (None, 0)

    def place(self, seq):
        distance = (seq - self.irs - 1 - self.next) & 0xFFFFFFFF  # W-1.1
        return self.next + distance - (1 << 32 if distance >> 31 else 0)

    def missing(self, start, end):
        return [at for at in range(max(start, self.next), end) if at >= len(self.have) or not self.have[at]]

    def take(self, at, payload, fin):
        if at < 0 or not payload and not fin:
            return
        more = bytes(max(at + len(payload) - len(self.bytes), 0))
        self.bytes, self.have = self.bytes + more, self.have + more
        for index, byte in enumerate(payload, at):
            if not self.have[index]:
                self.bytes[index], self.have[index] = byte, 1
        if fin:
            self.fin = at + len(payload)
        while self.next < len(self.have) and self.have[self.next]:
            self.next += 1

    def segment(self, segment, now):
        if segment.flags & (SYN | RST):
            return
        if segment.malformed or segment.encoded() and not self.on:
            return  # W-2.11, W-2.15
        if self.recent is not None and segment.tsval is not None and (segment.tsval - self.recent) & 0x80000000:
            return  # PAWS, W-5.4
        at = self.place(segment.seq)
        if segment.encoded():
            return self.parity(segment, at, now)
        if segment.tsval is not None and at <= self.next:
            self.recent = segment.tsval
        self.take(at, segment.payload, segment.flags & FIN)
        for label in list(self.kept):  # W-5.21
            if label in self.kept:
                self.attempt(label[:5], {}, label[5])

    def parity(self, segment, at, now):
        form, length = segment.gentle, len(segment.payload)
        if segment.flags & (FIN | URG) or not length or len(form) not in (11, 12) or len(form) == 12 and self.code != 3:
            return  # W-5.3
        if not (at + length <= self.next and self.next - at < 1 << 30):
            return  # W-5.5
        enc_len, start = int.from_bytes(form[1:4], "big"), at + int.from_bytes(form[4:7], "big")
        end, blocks = start + enc_len, -(-enc_len // length)
        if length > enc_len or length > self.rmss or blocks > self.most or self.code == 2 and blocks % 2 == 0:
            return  # W-5.6
        if end > self.next + self.edge or end > self.next and start < self.next - (self.most - 1) * self.rmss:
            return  # W-5.7
        row, rows = (form[11] >> 4, form[11] & 15) if len(form) == 12 else (0, 1)
        label = (start, end, length, int.from_bytes(form[7:11], "big"), form[0] & FIN_END)
        if not self.covered_missing(label) and not (label[4] and self.fin is None):
            return  # W-5.9
        began, count = self.span if self.span[0] is not None and now - self.span[0] < 100_000 else (now, 0)
        self.span = (began, count + 1)
        if count >= 64:
            return  # W-5.10
        if self.attempt(label, {row: segment.payload}, rows - 1 - row) == "short" and rows > 1:
            if all(other[:4] != label[:4] or other[6] != row for other in self.kept):
                self.kept = (self.kept + [label + (rows - 1 - row, row, segment.payload)])[-8:]  # W-5.20

    def covered(self, label):
        """(number of the block, its bytes as places) of the blocks that count."""
        start, end, size = label[:3]
        step = 2 if self.code == 2 else 1  # W-4.11
        places = [range(at, min(at + size, end)) for at in range(start, end, size)]
        return list(enumerate(places))[::step]

    def covered_missing(self, label):
        return [at for _, block in self.covered(label) for at in self.missing(block.start, block.stop)]

    def attempt(self, label, arriving, still):
        start, end, size, checksum, fin_end = label
        self.kept = [other for other in self.kept if other[1] > self.next]  # W-5.20
        parities = {other[6]: other[7] for other in self.kept if other[:4] == label[:4]}
        parities.update(arriving)
        lost, blocks = self.covered_missing(label), self.covered(label)
        if not lost and not arriving:
            return None
        if start < 0 and lost:
            return self.report_failure(end)  # W-5.11
        columns = {}
        for at in lost:
            columns.setdefault((at - start) % size, []).append((at - start) // size)
        depth = max(map(len, columns.values()), default=0)
        if depth > len(parities):
            if arriving and depth - len(parities) > still:
                self.report_failure(end)  # W-5.15, W-5.19
            return "short"
        arrived = len(lost) < sum(map(len, (block for _, block in blocks)))
        if not (self.code == 3 or arrived or start <= self.next or not self.missing(start - 1, start)):
            return self.report_failure(end)  # W-5.16
        rebuilt = {}
        for column, absent in columns.items():
            equations = []
            for row in sorted(parities)[:len(absent)]:  # W-4.10
                total = parities[row][column]
                for number, block in blocks:
                    if number not in absent and column < len(block):
                        total ^= multiply(self.factor(row, number), self.bytes[block[column]])
                equations.append([self.factor(row, number) for number in absent] + [total])
            for number, byte in zip(absent, solve(equations)):
                rebuilt[start + number * size + column] = byte
        whole = bytes(rebuilt[at] if at in rebuilt else self.bytes[at] for _, block in blocks for at in block)
        self.kept = [other for other in self.kept if other[:4] != label[:4]]
        place = (start & 0xFFFFFFFF).to_bytes(4, "big") if self.code == 3 else b""  # W-4.16
        if crc32c(place + whole) != checksum:  # W-5.12, W-5.18
            self.mismatches += 1
            self.on = self.mismatches < 2
            return self.report_failure(end)
        for first in [at for at in sorted(rebuilt) if at - 1 not in rebuilt]:
            last = next(at for at in range(first, end + 1) if at not in rebuilt)
            self.take(first, bytes(rebuilt[at] for at in range(first, last)), False)
            self.repairs.append((first, last))
            print(f"  repaired [{first}, {last}) from {depth} of the parities of [{start}, {end})")
        if fin_end and self.fin is None:
            self.fin = end  # W-5.13

    def factor(self, row, number):
        return divide(128 + number, row ^ (128 + number)) if self.code == 3 else 1  # W-4.13

    def report_failure(self, end):
        print(f"  failed: {end - self.next} bytes from {self.next} on are to be sent again")

def main(path):
    found = sorted(packets(pathlib.Path(path).read_bytes()), key=lambda packet: packet[0])
    segments = [entry for entry in ((now, way, Segment(data)) for now, way, data in found) if entry[2].ok]
    offers, receivers, sent, wrong = {}, {}, {}, 0
    for now, way, segment in segments:
        pair, back = (segment.src, segment.dst), (segment.dst, segment.src)
        answer = segment.gentle[0] if segment.flags & SYN and segment.gentle and len(segment.gentle) == 1 else None
        if segment.flags & SYN and not segment.flags & ACK and pair not in offers:
            offers[pair] = (answer, segment)
        elif segment.flags & SYN and back in offers and pair not in receivers:
            offer, syn = offers[back]
            code = None if offer is None or answer is None else answer & 15
            if code and answer & 0xB0 == 0x90 and (code == offer & 15 or (offer & 15, code) == (3, 1)):  # W-3.4, W-3.9
                receivers[pair] = Receiver(code, segment.seq, syn.mss), syn.scale
                receivers[back] = Receiver(code, syn.seq, segment.mss), segment.scale
        if pair not in receivers:
            continue
        receiver = receivers[pair][0]
        if way != 1 and not segment.flags & SYN and not segment.encoded():
            sent.setdefault(pair, {}).update(enumerate(segment.payload, receiver.place(segment.seq)))
        if way != 1 and segment.flags & ACK:
            own, scale = receivers[back]
            own.edge = max(own.edge, segment.window << (0 if segment.flags & SYN else scale))
        if way != 2:
            receiver.segment(segment, now)
    for pair, (receiver, _) in receivers.items():
        truth = sent.get(pair, {})
        good = receiver.next == len(truth) and bytes(receiver.bytes) == bytes(truth.get(at, 0) for at in range(len(truth)))
        wrong += not good
        total = sum(end - start for start, end in receiver.repairs)
        print(f"TYPE {receiver.code}: {receiver.next} bytes, {total} of them in {len(receiver.repairs)} runs repaired, "
              f"{'as sent' if good else 'NOT AS SENT'}")
    return 2 if not receivers else 1 if wrong else 0

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
