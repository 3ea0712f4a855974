"""Prints the table of tools/measure/own-traffic.

usage: own_traffic.py DIRECTORY RTT LOSS BYTES
Appends a line for each estimate beside its measured effect to DIRECTORY/agreement.
"""
import json
import random
import sys

RESAMPLES = 1000


def times(path):
    """Returns the milliseconds to the last byte that `exchange load` printed; failures are omitted."""
    return [float(line.split()[2]) for line in open(path) if not line.startswith("failed")]


def without_dropped_data(path, rtt):
    """Returns the times with the kernel's Fast Open, where an exchange with a lost SYN-ACK counts as the mean of those with a lost
    SYN: the kernel's client drops data that comes before a SYN-ACK, and its server has to send that data again."""
    rows = [[float(word) for word in line.split()[1:3]] for line in open(path) if not line.startswith("failed")]
    lost_syn = [last for first, last in rows if 1000 <= first < 1000 + 4 * rtt]
    as_lost_syn = sum(lost_syn) / max(1, len(lost_syn))
    return [as_lost_syn if first >= 1000 + 4 * rtt else last for first, last in rows]


def gain(off, on):
    """Returns the change of the mean in percent, with its 95 % interval (bootstrap over both samples)."""
    chance = random.Random(1)
    mean = lambda sample: sum(sample) / len(sample)
    drawn = sorted(
        100 * (mean(chance.choices(on, k=len(on))) / mean(chance.choices(off, k=len(off))) - 1) for _ in range(RESAMPLES)
    )
    return 100 * (mean(on) / mean(off) - 1), drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]


def row(what, expected, found, interval, tolerance):
    off = 100 * (found / expected - 1)
    verdict = "ok" if abs(off) <= tolerance else "OUTSIDE"
    print(f"  {what:28}{expected:10.3f}{found:10.3f}  {interval:18}{off:+7.1f} %  (+-{tolerance} %) {verdict}")


directory, rtt, loss, size = sys.argv[1:]
length = float(rtt.removesuffix("ms"))
if loss.startswith("after:"):
    begins, continues = (float(part.rstrip("%")) / 100 for part in loss.removeprefix("after:").split(",")[:2])
    burst = 1 / (1 - continues)
else:
    rate = float(loss.rstrip("%")) / 100
    burst = 1 / (1 - rate)
# A line for each direction: packets in the sender's capture, and packets that the receiver's capture has too.
lost = {}
for line in open(f"{directory}/crossed"):
    way, sent, arrived = line.split()
    lost[way] = 1 - int(arrived) / int(sent)
runs = [f"{who}.{arm}" for who in ("kernel", "brisk") for arm in ("off", "reactive", "fast-open")]
sample = {name: times(f"{directory}/{name}") for name in runs}
print(f"\n{rtt}, loss {loss}, {size} bytes; {', '.join(f'{name} n={len(values)}' for name, values in sample.items())}")
agreement = open(f"{directory}/agreement", "a")
for side in ("left", "right"):
    answer = json.load(open(f"{directory}/{side}.json"))
    capture = answer["capture"]
    print(f"captured at the {capture['side']}s{'':10}{'link':>14}{'capture':>10}  95 %")
    row("round trip, ms", length, capture["rtt_ms"][1], "", 5)
    for way in ("down", "up"):
        facts = capture[way]
        low, high = (100 * end for end in facts["rate_ci95"])
        row(f"loss {way}, %", 100 * lost[way], 100 * facts["rate"], f"{low:.2f}..{high:.2f}", 10)
        low, high = (end if end is not None else float("inf") for end in facts["burst_ci95"])
        row(f"burst {way}, packets", burst, facts["burst"], f"{low:.2f}..{high:.2f}", 20)
    # The kernel's Fast Open stores only the cookie; brisk's also stores the properties of the path.
    effects = (
        ("Reactive", ("kernel", "brisk"), "off", "reactive"),
        ("Fast Open alone", ("kernel",), "reactive", "fast-open"),
        ("Fast Open", ("brisk",), "reactive", "fast-open"),
    )
    for name, measured_with, before, after in effects:
        estimate = next(entry for entry in answer["estimate"]["gains"] if entry["mechanism"] == name)
        from_, to = estimate["mean_ci95"]
        estimated = f"estimated {estimate['mean']:+6.1f} % ({from_:+.1f}..{to:+.1f})"
        print(f"  {name + ', mean':28}{estimated}")
        for who in measured_with:
            measured, low, high = gain(sample[f"{who}.{before}"], sample[f"{who}.{after}"])
            effect = f"measured {measured:+6.1f} % ({low:+.1f}..{high:+.1f})"
            print(f"  {'':28}{effect}, {who}")
            if name == "Fast Open alone":
                kept, *_ = gain(sample["kernel.reactive"], without_dropped_data(f"{directory}/kernel.fast-open", length))
                print(f"  {'':28}         {kept:+6.1f} %, if its client had kept data that came before a SYN-ACK")
            verdict = "agrees" if from_ <= measured <= to else "does not agree"
            overlap = "" if verdict == "agrees" or low > to or high < from_ else " (the intervals overlap)"
            agreement.write(
                f"{loss:18} {capture['side']:7} {name:15} {who:7} {estimated:36} {effect:36} {verdict}{overlap}\n"
            )
