"""Prints the figures of tools/measure/grid: quantiles of the `exchange load` lines of the kernel and of brisk, side by side.

usage: quantiles.py DIRECTORY RTT LOSS VERDICT SIZE...     the cells of one link, and keeps their ratios for the sum
       quantiles.py DIRECTORY sum                          what they come to
"""
import json
import math
import random
import sys

KEYS = ["p50", "p90", "p99", "mean"]
RESAMPLES = 400
# brisk's packets pass two more kernels than the kernel's own, which takes up to 0.4 ms of the 57 ms of the shortest transaction.
OF_THE_PATH = 0.01


def figures(times):
    times = sorted(times)
    at = lambda p: times[min(len(times) - 1, math.ceil(p * len(times)) - 1)]
    return [at(0.5), at(0.9), at(0.99), sum(times) / len(times)]


def read(path):
    """Returns the milliseconds of completed transactions, and the number of failed ones."""
    times, failed = [], 0
    for line in open(path):
        words = line.split()
        if words[0] == "failed":
            failed += 1
        else:
            times.append(float(words[2]))
    return times, failed


def ratios(ours, kernel, chance):
    """Returns brisk's value divided by the kernel's for each figure, with the 95 % bootstrap interval over both samples."""
    samples = [[], [], [], []]
    for _ in range(RESAMPLES):
        a = figures(chance.choices(ours, k=len(ours)))
        b = figures(chance.choices(kernel, k=len(kernel)))
        for sample, x, y in zip(samples, a, b):
            sample.append(x / y)
    whole = [x / y for x, y in zip(figures(ours), figures(kernel))]
    ends = [(sorted(s)[int(0.025 * RESAMPLES)], sorted(s)[int(0.975 * RESAMPLES)]) for s in samples]
    return [(ratio, low, high) for ratio, (low, high) in zip(whole, ends)]


def cell(directory, rtt, loss, size, chance):
    path = f"{directory}/result.{rtt}.{loss}.{size}"
    (kernel, kernel_failed), (ours, ours_failed) = read(path + ".kernel"), read(path + ".ours")
    compared = ratios(ours, kernel, chance)
    row = f"{rtt:>6} {loss:>12} {int(size) / 1000:5g} "
    for values in (figures(kernel), figures(ours)):
        row += "|" + "".join(f"{value:7.0f}" for value in values) + " "
    row += "|" + "".join(f"  {ratio:4.2f} ({low:4.2f}-{high:4.2f})" for ratio, low, high in compared)
    if kernel_failed or ours_failed:
        row += f"  failed: kernel {kernel_failed}, ours {ours_failed}"
    print(row, flush=True)
    with open(f"{directory}/cells.jsonl", "a") as cells:
        print(json.dumps({"cell": [rtt, loss, size], "ratios": compared, "n": [len(kernel), len(ours)]}), file=cells)


def total(directory):
    cells = [json.loads(line) for line in open(f"{directory}/cells.jsonl")]
    print(f"\n{len(cells)} cells; ours / kernel over all of them, with the interval of the mean:")
    for index, key in enumerate(KEYS):
        values = [cell["ratios"][index] for cell in cells]
        mean = sum(ratio for ratio, _, _ in values) / len(values)
        better = sum(high < 1 for _, _, high in values)
        worse = sum(low > 1 + OF_THE_PATH for _, low, _ in values)
        near = sum(abs(ratio - 1) <= 0.03 for ratio, _, _ in values)
        # The cells are independent samples, so the squares of the interval widths add.
        width = math.sqrt(sum(((high - low) / 2) ** 2 for _, low, high in values)) / len(values)
        print(f"  {key:4} mean {mean:.3f} +-{width:.3f}, within 3 % in {near}; better beyond the interval in {better}, worse by more than 1 % in {worse}")
    for cell in cells:
        worse = [f"{key} {r[0]:.2f} ({r[1]:.2f}-{r[2]:.2f})" for key, r in zip(KEYS, cell["ratios"]) if r[1] > 1 + OF_THE_PATH]
        if worse:
            print("  worse: " + " ".join(cell["cell"]) + ": " + ", ".join(worse))


if __name__ == "__main__":
    directory = sys.argv[1]
    if sys.argv[2] == "sum":
        total(directory)
    else:
        rtt, loss, verdict, *sizes = sys.argv[2:]
        try:
            open(f"{directory}/cells.jsonl").close()
        except FileNotFoundError:
            print(f"{'':25}|{'kernel, ms':^29}|{'ours, ms':^29}| ours / kernel (95 % interval)")
            heading = "".join(f"{key:>7}" for key in KEYS) + " "
            print(f"{'rtt':>6} {'loss':>12} {'kB':>5} |{heading}|{heading}|" + "".join(f"  {key:<16}" for key in KEYS))
        for size in sizes:
            cell(directory, rtt, loss, size, random.Random(1))
        print(f"{'':25}  {verdict}")
